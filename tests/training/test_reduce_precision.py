"""Gradients are exchanged in the type that the recipe names, with every strategy.

The process group has one rank. For sharding, which exchanges nothing on one rank, it claims four, and its
collectives do nothing. That shows types, not sums; `test_strategies.py` compares the losses of real ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime.process_group import single_process_group
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.step import Stepper
from trainfleet.training.trainer.strategies import make_strategy
from trainfleet.training.workloads import make_workload

Make = Callable[..., Recipe]
REDUCTIONS = ("c10d.allreduce_", "c10d._reduce_scatter_base_")


class Reduced(TorchDispatchMode):
    """The types of tensors that are summed over ranks, without single values such as the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func.overloadpacket) in REDUCTIONS:
            given = args[0] if isinstance(args[0], list) else [args[1]]
            self.types |= {each.dtype for each in given if each.numel() > 16}
        return func(*args, **(kwargs or {}))


@contextmanager
def fake_group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("reduced", ["fp32", "bf16"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_gradients_are_exchanged_in_the_type_of_the_recipe(
    tmp_path: Path, tiny: Make, cache: Path, strategy: str, reduced: str, precision: str
) -> None:
    recipe = tiny(
        f"strategy={strategy}",
        f"reduce_precision={reduced}",
        f"precision={precision}",
        "batch.micro_batch=2",
        "sharding.replicas=2" if strategy == "hsdp" else "sharding.replicas=null",
        "scaling.workers=4",
    )
    workload = make_workload(recipe, cache)
    context = RunContext(tmp_path, 0, 4, 0, 4)
    with single_process_group() if strategy == "ddp" else fake_group():
        made = make_strategy(recipe, workload.build_model, context)
        with Reduced() as found:
            Stepper(recipe, context, workload, made).compute_gradients(list(range(16)))
    assert found.types == {torch.float32 if reduced == "fp32" else torch.bfloat16}
    assert {each.grad.dtype for each in made.module.parameters() if each.grad is not None} == {torch.float32}
