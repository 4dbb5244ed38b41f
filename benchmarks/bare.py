"""A training loop as one writes it by hand: DDP, AdamW, clipping, a schedule, and nothing else. What the step
loop is measured against.

Used by `benchmarks.loop` and `benchmarks.gpu`. It takes the same model and the same samples as the run beside
it, so that only the
loop differs; it keeps no figures, saves nothing, and asks nobody whether to stop.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch.nn.parallel import DistributedDataParallel

from trainfleet.training.data import make_order
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.workloads import make_workload


class BareLoop:
    """One rank's model, optimizer and data; `step` is the loop's body."""

    def __init__(self, recipe: Recipe, cache: str, rank: int, world_size: int, device: str) -> None:
        from pathlib import Path

        self.recipe, self.rank, self.world_size, self.device = recipe, rank, world_size, device
        self.workload = make_workload(recipe, Path(cache))
        self.order = make_order(recipe, self.workload)
        torch.manual_seed(recipe.seed)
        self.model: torch.nn.Module = self.workload.build_model().to(device)
        if recipe.compile:
            self.model.compile()
        if world_size > 1:
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        optimizer = recipe.optimizer
        matrices = [each for each in self.model.parameters() if each.ndim >= 2]
        vectors = [each for each in self.model.parameters() if each.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": optimizer.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=optimizer.lr, betas=optimizer.betas, fused=True)
        self.number = 0

    def step(self) -> None:
        """Forward and backward over this rank's micro batches, clip, step."""
        batch = self.recipe.batch
        turns = batch.accumulation(self.world_size)
        kind = self.device.partition(":")[0]
        for turn in range(turns):
            start = (
                self.number * batch.global_batch + (turn * self.world_size + self.rank) * batch.micro_batch
            )
            data = self.workload.batch("train", self.order.indices(start, batch.micro_batch))
            inputs, targets = (
                data[name].to(self.device, non_blocking=True) for name in ("inputs", "targets")
            )
            synced = turn == turns - 1 or not isinstance(self.model, DistributedDataParallel)
            with nullcontext() if synced else self.model.no_sync():  # type: ignore[operator]  # a DDP, as just checked
                with (
                    torch.autocast(kind, torch.bfloat16) if self.recipe.precision == "bf16" else nullcontext()
                ):
                    logits = self.model(inputs)
                loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()) / turns
                loss.backward()  # type: ignore[no-untyped-call]  # torch types it not
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.grad_clip)
        progress = self.number / max(1, (self.recipe.steps or 1) - 1)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.optimizer.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.number += 1
