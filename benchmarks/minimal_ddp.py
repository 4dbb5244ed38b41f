"""A minimal hand-written training loop (DDP, AdamW, clipping, a schedule): the baseline of the step loop.

It trains the same model on the same samples as the run that it is compared with. It computes no metrics,
saves nothing and checks no stop requests.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's usual name for it
from torch.nn.parallel import DistributedDataParallel

from trainfleet.training.data import make_order
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.workloads import make_workload


class MinimalDdpLoop:
    """One rank's model, optimizer and data; `step` is the body of the loop."""

    def __init__(self, recipe: Recipe, cache: Path, rank: int, world_size: int, device: str) -> None:
        self.recipe, self.rank, self.world_size, self.device = recipe, rank, world_size, device
        self.workload = make_workload(recipe, cache)
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
        self.steps = 0

    def step(self) -> None:
        """Run forward and backward over this rank's micro batches, clip, and step the optimizer."""
        micro_batches = self.recipe.batch.accumulation(self.world_size)
        for number in range(micro_batches):
            self._backward(number, micro_batches)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.grad_clip)
        progress = self.steps / max(1, (self.recipe.steps or 1) - 1)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.optimizer.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1

    def _backward(self, number: int, micro_batches: int) -> None:
        """Add the gradient of one micro batch; the last one synchronizes the ranks."""
        batch, kind = self.recipe.batch, self.device.partition(":")[0]
        start = self.steps * batch.global_batch + (number * self.world_size + self.rank) * batch.micro_batch
        data = self.workload.batch("train", self.order.indices(start, batch.micro_batch))
        inputs, targets = (data[name].to(self.device, non_blocking=True) for name in ("inputs", "targets"))
        synced = number == micro_batches - 1 or not isinstance(self.model, DistributedDataParallel)
        bf16 = self.recipe.precision == "bf16"
        with nullcontext() if synced else self.model.no_sync():  # type: ignore[operator]  # a DDP, as just checked
            with torch.autocast(kind, torch.bfloat16) if bf16 else nullcontext():
                logits = self.model(inputs)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()) / micro_batches
            loss.backward()  # type: ignore[no-untyped-call]  # not typed in torch
