"""Modules and workloads for test_lightning.py, which ranks import by name."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from tests.training.workloads.lightning_stub import LightningModule
from trainfleet.training.workloads.lightning import LightningWorkload
from trainfleet.training.workloads.settings import WorkloadSettings

SIZES = {"train": 50, "validation": 13, "test": 7}


def samples(split: str) -> TensorDataset:
    """Points, and on which side of a curve they are."""
    random = torch.Generator().manual_seed(len(split))
    points = torch.randn(SIZES[split], 3, generator=random)
    return TensorDataset(points, (points.prod(dim=1) > 0).long())


class Steps:
    """Steps over batches of points and sides."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        points, sides = batch
        logits = self(points)
        self.log("train_acc", (logits.argmax(dim=-1) == sides).float().mean(), prog_bar=True)
        return F.cross_entropy(logits, sides)

    def validation_step(self: Any, batch: Any, batch_idx: int) -> None:
        points, sides = batch
        logits = self(points)
        self.log_dict({"val_loss": F.cross_entropy(logits, sides), "val_rows": float(len(points))})
        self.log("val_acc", (logits.argmax(dim=-1) == sides).float().mean(), sync_dist=True)

    def test_step(self: Any, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        points, sides = batch
        return {"loss": F.cross_entropy(self(points), sides)}

    def configure_optimizers(self: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


class Lit(Steps, LightningModule):
    """A LightningModule; `noisy` adds dropout and BatchNorm, whose buffers change in training."""

    def __init__(self, *, noisy: bool = False) -> None:
        super().__init__()
        more = [nn.BatchNorm1d(8), nn.Dropout(0.2)] if noisy else []
        self.layers = nn.Sequential(nn.Linear(3, 8), *more, nn.SiLU(), nn.Linear(8, 2))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.layers(points)


class Plain(Steps, nn.Module):
    """The same without Lightning's class."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 2))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.layers(points)


class Points(LightningWorkload):
    """The points, with a module that the settings choose."""

    class Settings(WorkloadSettings):
        name: Literal["tests.training.workloads.lightning_modules:Points"]
        module: Literal["lit", "noisy", "plain"] = "lit"
        broken: int | None = None

        metric_names = ("val_acc",)

    optimizer = "recipe"
    metrics = ("train_acc", "val_acc", "val_rows")

    def make_module(self) -> nn.Module:
        return Plain() if self.settings.module == "plain" else Lit(noisy=self.settings.module == "noisy")

    def make_dataset(self, split: Any) -> Dataset[Any]:
        found = samples(split)
        if split == "train" and self.settings.broken is not None:
            found.tensors[0][self.settings.broken] = torch.nan
        return found

    def fingerprint(self) -> str:
        return f"points {self.settings.broken}"
