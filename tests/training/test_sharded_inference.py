"""A model in shards for an evaluation has the sharding of its recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy

from tests.training.training_runs import on_ranks
from trainfleet.errors import InputError
from trainfleet.training.inference.sharded import empty_sharded_model
from trainfleet.training.recipe.schema import Recipe


def network() -> nn.Module:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    return nn.Sequential(block(), block(), nn.BatchNorm1d(8))


def build(recipe: Recipe, on_meta: bool = False) -> Any:
    workload: Any = SimpleNamespace(build_model=network, on_meta=on_meta, precision=None)
    return empty_sharded_model(workload, recipe, "cpu")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("reshard", "gathers"), [(True, 3), (False, 0)])
def test_reshard_decides_whether_each_pass_gathers_the_weights(
    tiny: Callable[..., Recipe], tmp_path: Path, reshard: bool, gathers: int
) -> None:
    def second_pass(_: int) -> int:
        from torch.distributed.tensor.debug import CommDebugMode

        model = build(tiny("strategy=fsdp", f"sharding.reshard={reshard}".lower())).eval()
        counted = CommDebugMode()  # type: ignore[no-untyped-call]  # torch is partly typed
        with torch.no_grad():
            model(torch.ones(2, 8))
            with counted:
                model(torch.ones(2, 8))
        return int(counted.get_total_counts())  # type: ignore[no-untyped-call]  # torch is partly typed

    assert on_ranks(second_pass, 2, tmp_path) == [gathers] * 2


def test_replicas_of_hsdp_are_copies_of_the_model(tiny: Callable[..., Recipe], tmp_path: Path) -> None:
    def of(replicas: int | None) -> Recipe:
        recipe = tiny("strategy=hsdp")
        return recipe.model_copy(
            update={"sharding": recipe.sharding.model_copy(update={"replicas": replicas})}
        )

    def shapes(_: int) -> list[list[int]]:
        with pytest.raises(InputError, match="--workers: 2 processes cannot be divided into 3 replicas"):
            build(of(3))
        return [list(build(of(each))[0][0].weight.to_local().shape) for each in (2, None)]

    assert on_ranks(shapes, 2, tmp_path) == [[[8, 8], [4, 8]]] * 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("on_meta", [False, True])
def test_shards_that_are_offloaded_stay_in_host_memory(
    tiny: Callable[..., Recipe], tmp_path: Path, on_meta: bool
) -> None:
    def policies(_: int) -> list[bool]:
        found: list[bool] = []
        import torch.distributed.fsdp as fsdp

        shard = fsdp.fully_shard

        def seen(part: nn.Module, **settings: Any) -> Any:
            found.append(isinstance(settings["offload_policy"], CPUOffloadPolicy))
            return shard(part, **settings)

        fsdp.fully_shard = seen  # type: ignore[assignment]  # of this process only
        model = build(tiny("strategy=fsdp", "sharding.cpu_offload=true"), on_meta)
        with torch.no_grad():
            model(torch.ones(2, 8))
        return [*found, not any(each.is_meta for each in (*model.parameters(), *model.buffers()))]

    assert on_ranks(policies, 2, tmp_path) == [[True] * 4] * 2
