"""Muon on shards: the updates of whole matrices, gathered in bf16, and the same training and resume."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.checkpoint_reader import tensors_of
from tests.training.training_runs import metric_values, on_ranks, recipe_on, train_all
from trainfleet.training.checkpoint import step_name
from trainfleet.training.recipe.schema import Optimizer
from trainfleet.training.trainer.optimizer import make_optimizer, set_learning_rate

MUON = Optimizer(name="muon", lr=1e-2, betas=(0.8, 0.9), momentum=0.9, weight_decay=0.05)
STEPS, RANKS = 5, 2


class Block(nn.Module):
    """Matrices that are wide, high, and not divisible by the ranks; one has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.high = nn.Linear(32, 7), nn.Linear(6, 48, bias=False)
        self.unused = nn.Linear(4, 4)


class GatherCount(TorchDispatchMode):
    """The bytes of the tensors that are gathered from all ranks, and their types."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.types = 0, set[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if "all_gather_into_tensor" in str(func):
            self.bytes += out.numel() * out.element_size()
            self.types.add(out.dtype)
        return out


def check(rank: int, strategy: str) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor

    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    whole = copy.deepcopy(model)
    shape = (2, 2) if strategy == "hsdp" else (RANKS,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    optimizers = [make_optimizer(MUON, each) for each in (model, whole)]
    with GatherCount() as count:
        for step in range(STEPS):
            random = torch.Generator().manual_seed(step)
            for mine, other in zip(model.parameters(), whole.parameters(), strict=True):
                gradient = torch.randn(other.shape, generator=random)
                if other.shape == (4, 4):
                    continue
                assert isinstance(mine, DTensor)
                mine.grad = distribute_tensor(gradient, mine.device_mesh, mine.placements)
                other.grad = gradient
            for optimizer in optimizers:
                set_learning_rate(optimizer, 1e-2 / (step + 1))
                optimizer.step()
    worst = 0.0
    for mine, other in zip(model.parameters(), whole.parameters(), strict=True):
        assert isinstance(mine, DTensor)
        worst = max(worst, float((mine.full_tensor() - other).abs().max()))
    return {"worst": worst, "bytes": count.bytes, "types": [str(each) for each in count.types]}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
def test_shards_get_the_updates_of_whole_matrices(tmp_path: Path, strategy: str) -> None:
    """Each gathers 2 bytes per parameter, with the padding of the shards."""
    ranks = 4 if strategy == "hsdp" else RANKS
    for found in on_ranks(lambda rank: check(rank, strategy), ranks, tmp_path):
        assert found["worst"] < 1e-6
        assert found["types"] == ["torch.bfloat16"]
        assert found["bytes"] == STEPS * 2 * 2 * (32 * 8 + 6 * 48)


@pytest.mark.deep
def test_a_run_on_shards_is_that_of_one_process_and_resumes_with_the_same_bits(
    tmp_path: Path, text_folder: Path, cache: Path
) -> None:
    given = ("optimizer.name=muon", "steps=6", "validation.every=6", "checkpoint.every=3", "log.every=1")
    one = recipe_on(text_folder, *given)
    sharded = {"fsdp": recipe_on(text_folder, "strategy=fsdp", *given)}
    single = train_all({"one": one}, tmp_path, cache, 1)["one"]
    whole = train_all(sharded, tmp_path / "whole", cache, RANKS)["fsdp"]
    cut = train_all(sharded, tmp_path / "cut", cache, RANKS, stop_first=4)["fsdp"]
    assert metric_values(cut, "loss") == metric_values(whole, "loss")
    # It orthogonalises in bf16, so the last bits of a gradient change an update by 0.4 %.
    assert metric_values(whole, "loss") == pytest.approx(metric_values(single, "loss"), rel=1e-3)
    states = [
        tensors_of(folder / "checkpoints" / step_name(6))
        for folder in (tmp_path / "one", tmp_path / "whole" / "fsdp", tmp_path / "cut" / "fsdp")
    ]
    assert states[0].keys() == states[1].keys()
    assert any("momentum_buffer" in name for name in states[0])
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-3, atol=5e-3)
        assert torch.equal(states[1][name], states[2][name]), name
