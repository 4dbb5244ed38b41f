"""External yardsticks of the step loop: Lightning Fabric, and a loop with the structure of nanoGPT's.

Both train the run's model, from the same weights, on the same samples, and log the loss as often.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's usual name for it
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from benchmarks.minimal_loop import Yardstick
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.optimizer import set_learning_rate


class FabricLoop(Yardstick):
    """Fabric places the model, communicates, and chooses the precision; a DataLoader reads whole batches."""

    def __init__(self, recipe: Recipe, cache: Path, rank: int, world_size: int, device: str) -> None:
        super().__init__(recipe, cache, rank, world_size, device)
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

        self.fabric = Fabric(
            accelerator=self.kind,
            devices=world_size,
            strategy="ddp" if world_size > 1 else "auto",
            precision="bf16-mixed" if recipe.precision == "bf16" else "32-true",
            plugins=[TorchElasticEnvironment()],  # these processes run already
        )
        self.fabric.launch()
        plain = self.build()
        if recipe.compile:
            plain.compile()
        self.model, self.fabric_optimizer = self.fabric.setup(plain, self.adamw(plain))
        loader: Any = DataLoader(_Samples(self), batch_sampler=_Batches(self), collate_fn=_identity)
        self.batches = iter(self.fabric.setup_dataloaders(loader, use_distributed_sampler=False))

    def step(self) -> None:
        total = torch.zeros((), device=self.device)
        for turn in range(self.turns):
            inputs, targets = next(self.batches)
            with self.fabric.no_backward_sync(self.model, enabled=turn < self.turns - 1):
                logits = self.model(inputs)
                loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()) / self.turns
                self.fabric.backward(loss)
            total += loss.detach()
        limit = self.recipe.optimizer.grad_clip
        self.fabric.clip_gradients(self.model, self.fabric_optimizer, max_norm=limit)
        set_learning_rate(self.fabric_optimizer.optimizer, self.rate())
        self.fabric_optimizer.step()
        self.fabric_optimizer.zero_grad()
        self.losses.append(total)
        if len(self.losses) % self.recipe.log.every == 0:
            mean = self.fabric.all_reduce(total, reduce_op="mean")
            assert isinstance(mean, Tensor)
            float(mean)


class _Samples(Dataset[Any]):
    """The training split, read a batch at a time."""

    def __init__(self, loop: Yardstick) -> None:
        self.workload = loop.workload

    def __len__(self) -> int:
        return self.workload.size("train")

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        batch = self.workload.batch("train", indices)
        return batch["inputs"], batch["targets"]


class _Batches:
    """This rank's micro batches, in the order of the run."""

    def __init__(self, loop: Yardstick) -> None:
        self.loop = loop

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            for turn in range(self.loop.turns):
                yield self.loop.indices(turn)


def _identity(batch: Any) -> Any:
    return batch


class NanoGptLoop(Yardstick):
    """Batches are cut from one memory-mapped file of tokens, the next one while the device computes."""

    def __init__(self, recipe: Recipe, cache: Path, rank: int, world_size: int, device: str) -> None:
        super().__init__(recipe, cache, rank, world_size, device)
        self.length = self.workload.sample_tokens
        self.data = self._flat()
        self.model: nn.Module = self.build()
        self.optimizer = self.adamw(self.model)
        if recipe.compile:
            self.model.compile()
        if world_size > 1:
            ids = [torch.device(device)] if self.kind == "cuda" else None
            self.model = DistributedDataParallel(self.model, device_ids=ids)
        self.scaler = torch.amp.GradScaler(self.kind, enabled=False)  # only fp16 needs it
        self.turn = 0
        self.inputs, self.targets = self.batch()

    def _flat(self) -> np.memmap[Any, Any]:
        """The training split as one file of tokens: sample i begins at i x T."""
        blocks, size = self.workload.files.blocks["train"], self.workload.size("train")
        with tempfile.TemporaryFile() as file:
            for first in range(0, size, 4096):
                rows = blocks.rows(list(range(first, min(size, first + 4096))))["tokens"]
                file.write(np.ascontiguousarray(rows[:, :-1], dtype=np.uint16).tobytes())
            file.write(np.asarray(rows[-1, -1:], dtype=np.uint16).tobytes())
            file.flush()
            return np.memmap(file, dtype=np.uint16, mode="r")

    def batch(self) -> tuple[Tensor, Tensor]:
        """The next micro batch on the device."""
        starts = [index * self.length for index in self.indices(self.turn)]
        pairs = [(self._tokens(start), self._tokens(start + 1)) for start in starts]
        inputs, targets = (torch.stack(each) for each in zip(*pairs, strict=True))
        return self.copied(inputs), self.copied(targets)

    def _tokens(self, start: int) -> Tensor:
        return torch.from_numpy(self.data[start : start + self.length].astype(np.int64))

    def step(self) -> None:
        set_learning_rate(self.optimizer, self.rate())
        total = torch.zeros((), device=self.device)
        for turn in range(self.turns):
            last = turn == self.turns - 1
            if isinstance(self.model, DistributedDataParallel):
                self.model.require_backward_grad_sync = last
            with self.autocast():
                logits = self.model(self.inputs)
                loss = F.cross_entropy(logits.flatten(0, 1).float(), self.targets.flatten()) / self.turns
            total += loss.detach()
            if last:
                self.losses.append(total)
            self.turn = 0 if last else turn + 1
            self.inputs, self.targets = self.batch()
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch is partly typed
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.grad_clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if len(self.losses) % self.recipe.log.every == 0:
            total.item()
