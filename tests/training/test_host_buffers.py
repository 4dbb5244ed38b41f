"""Buffers of a snapshot share pinned allocations, which torch would round up one by one. Pinning needs a GPU."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import pytest
import torch

from trainfleet.training.checkpoint import Checkpoints, plan
from trainfleet.training.checkpoint.host_buffers import (
    ALIGNMENT,
    alone,
    host_buffers,
    packed,
    part_of,
    shared_buffers,
)
from trainfleet.training.recipe.schema import CheckpointConfig
from trainfleet.training.stores import open_store

BLOCK = [(2048, 2048)] * 4 + [(5632, 2048)] * 3 + [(2048,)] * 2
LLAMA_8B = [(4096, 4096)] * 2 + [(1024, 4096)] * 2 + [(14336, 4096)] * 3 + [(4096,)] * 2
SHAPES = {
    "1b": [(50304, 2048), *BLOCK * 22, (2048,)],
    "8b": [(128256, 4096), *LLAMA_8B * 32, (4096,), (128256, 4096)],
    "8b on 64 ranks": [(-(-rows[0] // 64), *rows[1:]) for rows in [(128256, 4096), *LLAMA_8B * 32]],
    "odd sizes": [(1000003,), *[(n,) for n in range(1, 3000, 7)]],
}


def size_of(shape: tuple[int, ...]) -> int:
    return 4 * int(torch.Size(shape).numel())


def power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


@pytest.mark.parametrize("name", SHAPES)
def test_allocations_are_powers_of_two_and_hardly_larger_than_the_tensors(name: str) -> None:
    sizes = [size_of(shape) for shape in SHAPES[name] * 3]  # weights and two moments
    allocations, places = packed(sizes)
    assert all(size == power_of_two(size) for size in allocations)
    assert sum(allocations) <= 1.03 * sum(sizes) + ALIGNMENT * len(sizes)
    used: dict[int, int] = dict.fromkeys(range(len(allocations)), 0)
    for place, size in sorted(zip(places, sizes, strict=True)):
        assert place.begin % ALIGNMENT == 0
        assert place.begin >= used[place.allocation], "two tensors share bytes"
        used[place.allocation] = place.begin + size
        assert used[place.allocation] <= allocations[place.allocation]


def test_one_allocation_for_each_tensor_would_take_more() -> None:
    sizes = [size_of(shape) for shape in SHAPES["1b"]]
    assert sum(map(power_of_two, sizes)) > 1.25 * sum(packed(sizes)[0])


def test_small_states_take_little_and_an_empty_one_nothing() -> None:
    assert packed([100, 100])[0] == [1024]
    assert packed([0]) == ([1], [(0, 0)])
    assert packed([]) == ([], [])


@pytest.mark.parametrize(
    "data",
    [
        torch.arange(6, dtype=torch.bfloat16).view(2, 3),
        torch.tensor(7.0, dtype=torch.float64),
        torch.arange(5),
        torch.tensor([True, False]),
        torch.zeros(0, 4),
    ],
    ids=lambda data: str(data.dtype),
)
def test_a_part_is_saved_with_its_own_bytes_only(data: torch.Tensor) -> None:
    memory = torch.full((4096,), 255, dtype=torch.uint8)
    part = part_of(memory, 512, data)
    part.copy_(data)
    assert part.is_contiguous()
    assert memory[:512].eq(255).all()
    assert memory[512 + data.nbytes :].eq(255).all()
    saved, plain = io.BytesIO(), io.BytesIO()
    torch.save(alone(part), saved)
    torch.save(data.clone(), plain)
    assert len(saved.getvalue()) == len(plain.getvalue())
    loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
    assert torch.equal(loaded, data)
    assert loaded.dtype == data.dtype


def test_a_tensor_in_host_memory_has_an_allocation_of_its_own() -> None:
    state = {"weight": torch.ones(2, 3, dtype=torch.bfloat16), "bias": torch.ones(4)}
    buffers = host_buffers(state)
    assert {key: (each.shape, each.dtype) for key, each in buffers.items()} == {
        key: (each.shape, each.dtype) for key, each in state.items()
    }
    assert len({each.untyped_storage().data_ptr() for each in buffers.values()}) == 2
    assert alone(buffers["bias"]) is buffers["bias"]


def test_a_checkpoint_from_shared_allocations_has_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    state = {
        "model": {
            "weight": torch.randn(300, 7),
            "bias": torch.randn(5, dtype=torch.float64).to(torch.bfloat16),
            "steps": torch.tensor(3.0),
        }
    }
    found = {}
    for name, buffers in (("own", plan.host_buffers), ("shared", partial(shared_buffers, pinned=False))):
        monkeypatch.setattr(plan, "host_buffers", buffers)
        checkpoints = Checkpoints(open_store(str(tmp_path / name)), CheckpointConfig(), lambda *_: None)
        checkpoints.save(1, state, {}, {}, {})
        checkpoints.finish()
        found[name] = {file.name: file.read_bytes() for file in (tmp_path / name).rglob("*.distcp")}
    assert found["own"] == found["shared"] != {}
