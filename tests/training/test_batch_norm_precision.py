"""With `precision: bf16`, BatchNorm keeps its weights and running means in fp32, whatever the strategy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.training_runs import on_ranks
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.strategies import make_strategy


def network() -> nn.Module:
    def block() -> nn.Module:
        return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())

    stem = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False), nn.BatchNorm2d(8))
    return nn.Sequential(*stem, block(), block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def step(recipe: Recipe, folder: Path, rank: int, world_size: int) -> dict[str, Any]:
    """The loss, running mean and gradient of a norm after a step, and the types of the state."""
    torch.manual_seed(rank)
    strategy = make_strategy(recipe, network, RunContext(folder, rank, world_size))
    with strategy.grad_sync(last=True), strategy.precision():
        output = strategy.parallel(torch.randn(4, 3, 10, 10))
        loss = output.float().square().mean()
    loss.backward()  # type: ignore[no-untyped-call]  # torch is partly typed
    norm = strategy.module.get_submodule("3.1")
    grad: Any = norm.weight.grad
    whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
    tensors = [*strategy.module.named_parameters(), *strategy.module.named_buffers()]
    return {
        "loss": loss.item(),
        "mean": norm.running_mean.tolist(),
        "grad": whole.float().tolist(),
        "output": str(output.dtype),
        "types": sorted({str(each.dtype) for name, each in tensors if "num_batches" not in name}),
        "names": sorted(strategy.module.state_dict()),
    }


@pytest.mark.deep
@pytest.mark.parametrize(
    "changes",
    [
        ("strategy=fsdp",),
        ("strategy=hsdp", "activation_checkpointing=full"),
        ("strategy=fsdp", "sharding.meta_init=true", "sharding.reshard=false"),
        ("strategy=fsdp", "sharding.blocks=[BatchNorm2d]"),
    ],
    ids=["fsdp", "hsdp, recomputed", "fsdp, on the meta device", "fsdp, each norm is a block"],
)
def test_a_network_with_batch_norm_trains_in_bf16(
    tiny: Callable[..., Recipe], tmp_path: Path, changes: tuple[str, ...]
) -> None:
    def both(rank: int) -> list[dict[str, Any]]:
        meta = [each for each in changes if "meta_init" in each]
        recipes = [tiny("precision=bf16", *each) for each in (("strategy=ddp",), changes)]
        if meta:  # ddp initializes another way, so that only a type can be compared
            return [step(recipes[1], tmp_path, rank, 2)] * 2
        return [step(each, tmp_path, rank, 2) for each in recipes]

    for ddp, sharded in on_ranks(both, 2, tmp_path):
        assert sharded["output"] == "torch.bfloat16"
        assert sharded["types"] == ["torch.float32"]
        assert sharded["names"] == ddp["names"]
        assert sharded["loss"] == pytest.approx(ddp["loss"], rel=0.02)
        assert sharded["mean"] == pytest.approx(ddp["mean"], rel=0.02, abs=1e-3)
        assert sharded["grad"] == pytest.approx(ddp["grad"], rel=0.1, abs=2e-3)
