"""DDP: every rank has the whole model, and gradients are averaged over ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.strategies.base import Strategy
from trainfleet.training.trainer.strategies.float8 import use_float8
from trainfleet.training.trainer.strategies.init_weights import build
from trainfleet.training.trainer.strategies.wrap import compile_blocks, find_blocks, recompute

SAMPLE_INTERVAL = 10
"""Steps between DDP's measurements of computation and communication."""


class DdpStrategy(Strategy):
    """The whole model on every rank."""

    def __init__(
        self, recipe: Recipe, make: Callable[[], nn.Module], context: RunContext, resumes: bool = False
    ) -> None:
        built = build(make, recipe.seed, meta=recipe.meta_init, resumes=resumes)
        module = built.materialise().to(context.device)
        super().__init__(module)
        self.not_drawn, self.notes = built.not_drawn, built.notes
        blocks = find_blocks(module, recipe.sharding.blocks)
        use_float8(recipe.float8, blocks, context.device)
        recompute(blocks, recipe.activation_checkpointing)
        if recipe.compile:
            compile_blocks(module, blocks)
        self._autocast = (
            (context.device.partition(":")[0], torch.bfloat16) if recipe.precision == "bf16" else None
        )
        if context.world_size > 1:
            ids = [torch.device(context.device)] if context.device.startswith("cuda") else None
            self.parallel = DistributedDataParallel(module, device_ids=ids, gradient_as_bucket_view=True)
            if recipe.reduce_precision == "bf16":
                self.parallel.register_comm_hook(None, bf16_compress_hook)
            self.parallel._set_ddp_runtime_logging_sample_rate(SAMPLE_INTERVAL)  # type: ignore[no-untyped-call]  # torch is partly typed

    def warm_up(self, warmup_pass: Callable[[nn.Module], Any]) -> None:
        # NOTE: DDP fixes the order of gradient sums after its first backward pass. Without these passes a
        # resumed
        # run differs from an uninterrupted one in the last bits.
        if self.parallel is not self.module:
            for _ in range(2):
                warmup_pass(self.parallel)
                self.module.zero_grad(set_to_none=True)

    def grad_sync(self, last: bool) -> AbstractContextManager[Any]:
        if last or not isinstance(self.parallel, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.parallel.no_sync()

    def grad_sync_seconds(self) -> float | None:
        if not isinstance(self.parallel, DistributedDataParallel):
            return None
        timing: dict[str, Any] = self.parallel._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # torch is partly typed
        if "backward_comm_time" not in timing:
            return None
        waited = timing["backward_comm_time"] - timing["backward_compute_comm_overlap_time"]
        return max(0.0, float(waited) / 1e9)

    def backward_seconds(self) -> float | None:
        if not isinstance(self.parallel, DistributedDataParallel):
            return None
        timing: dict[str, Any] = self.parallel._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # torch is partly typed
        computed = timing.get("backward_compute_time", 0)
        return float(computed) / 1e9 if computed else None

    def precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(*self._autocast) if self._autocast else contextlib.nullcontext()
