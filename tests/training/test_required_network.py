"""A run uses the network that its platform requires of NCCL, or ends with the reason. NCCL is a fake here: the
collective returns or fails as NCCL's does.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from trainfleet.errors import InputError
from trainfleet.training.runtime.process_group import World
from trainfleet.training.runtime.progress import describe
from trainfleet.training.runtime.required_network import require_network

TWO = World(rank=0, world_size=2, device="cuda:0")


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices of the collectives that were called; none of them needs a GPU."""
    called: list[str] = []
    monkeypatch.setattr(torch, "zeros", lambda _size, device: device)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(dist, "all_reduce", called.append)
    monkeypatch.setenv("NCCL_NET", "gIB")
    return called


def test_the_required_network_is_named_after_a_collective_of_all_ranks(collectives: list[str]) -> None:
    assert require_network(TWO) == "gIB"
    assert collectives == ["cuda:0"]


def test_the_network_is_a_line_of_the_run_log() -> None:
    event = {"kind": "event", "what": "network", "text": "NCCL uses gIB, as the platform requires"}
    assert describe(event) == "network: NCCL uses gIB, as the platform requires"


@pytest.mark.parametrize(
    ("world", "name"),
    [
        (TWO, ""),
        (World(rank=0, world_size=1, device="cuda:0"), "gIB"),
        (World(rank=0, world_size=2, device="cpu"), "gIB"),
    ],
    ids=["none required", "one rank", "without GPUs"],
)
def test_nothing_is_checked_where_nothing_is_required(
    collectives: list[str], monkeypatch: pytest.MonkeyPatch, world: World, name: str
) -> None:
    monkeypatch.setenv("NCCL_NET", name)
    assert require_network(world) == ""
    assert collectives == []


def test_a_network_that_nccl_does_not_find_ends_the_run_with_the_reason(
    collectives: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_tensor: Any) -> None:
        raise dist.DistBackendError("\nNCCL error in: ProcessGroupNCCL.cpp:94, invalid usage\nmore")

    monkeypatch.setattr(dist, "all_reduce", fail)
    with pytest.raises(InputError) as caught:
        require_network(TWO)
    assert (
        "NCCL_NET: NCCL does not start with the network gIB that the platform requires: NCCL error in:"
        in str(caught.value)
    )
    assert "images/Dockerfile" in str(caught.value)
    assert collectives == []
