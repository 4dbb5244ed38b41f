"""A workload of an existing `LightningModule` and map-style datasets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from filelock import FileLock
from torch.utils._pytree import TreeSpec, keystr, tree_flatten_with_path, tree_unflatten
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.base import Split, StepOutput, Workload
from trainfleet.training.workloads.lightning.step_log import check_names
from trainfleet.training.workloads.lightning.step_module import StepModule
from trainfleet.training.workloads.lightning.step_source import unsupported_uses
from trainfleet.training.workloads.lightning.unsupported import unsupported
from trainfleet.training.workloads.settings import WorkloadSettings

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class LightningWorkload(Workload):
    """Runs the steps of a module. A subclass defines `make_module`, `make_dataset` and `fingerprint`.

    A loss is the mean over the samples of a batch. It is weighted by their number, so micro batches and ranks
    of different sizes are exact.

    Attributes:
        metrics: every name that the module passes to `self.log`, in any step.
        optimizer: `recipe` states that the recipe's optimizer and schedule replace what
            `configure_optimizers` returns; None: a module that defines it is rejected.
        loss_names: the logged names that are the loss of a split whose step returns none.
    """

    loss_unit = "mean/sample"
    optimizer: Literal["recipe"] | None = None
    loss_names: Mapping[Split, str] = {"validation": "val_loss", "test": "test_loss"}

    def __init__(self, settings: WorkloadSettings, cache: Path) -> None:
        """Open the datasets; the ranks of a machine do so one after another, so that only one downloads.

        Raises:
            InputError: a dataset is not map-style, or its samples are not tensors.
        """
        self.settings, self.cache = settings, cache
        name = type(self).__qualname__
        check_names(name, self.metrics)
        if self.optimizer not in (None, "recipe"):
            problem = Problem(f"{name}.optimizer", f"is {self.optimizer!r}", '"recipe" or None')
            raise InputError("the workload's optimizer is not valid", [problem])
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / "make-dataset.lock"):
            self._datasets: dict[Split, Any] = {split: self.make_dataset(split) for split in SPLITS}
        problems = [each for split in SPLITS for each in self._wrong_dataset(split)]
        if problems:
            raise InputError("a dataset cannot be used", problems)
        self._structures = {
            split: self._flatten(split, [0])[1] for split in SPLITS if len(self._datasets[split])
        }

    @abstractmethod
    def make_module(self) -> torch.nn.Module:
        """Construct the module from `self.settings`, with torch's global random generator."""

    @abstractmethod
    def make_dataset(self, split: Split) -> Dataset[Any]:
        """A map-style dataset: `len(dataset)`, and `dataset[index]` of a sample."""

    def collate(self, samples: list[Any]) -> Any:
        """A batch of samples: tensors, alone or in tuples, lists and dictionaries, whose first dimension is
        the sample.
        """
        return default_collate(samples)

    def build_model(self) -> StepModule:
        """The module, to be called with a batch of a split.

        Raises:
            InputError: the module defines what the step loop does not honour; names all of it.
        """
        module = self.make_module()
        if not isinstance(module, torch.nn.Module):
            what = f"returns {type(module).__name__}"
            problem = Problem(f"{type(self).__qualname__}.make_module", what, "a torch.nn.Module")
            raise InputError("the workload has no module", [problem])
        known = frozenset({*self.metrics, *self.loss_names.values()})
        problems = [*unsupported(module, self.optimizer), *unsupported_uses(module, known)]
        if problems:
            raise InputError("the module has parts that the step loop does not honour", problems)
        return StepModule(module, self.metrics, self.loss_names)

    def size(self, split: Split) -> int:
        return len(self._datasets[split])

    def num_targets(self, split: Split, indices: Sequence[int]) -> float:  # noqa: ARG002 - samples
        return float(len(indices))

    def batch(self, split: Split, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """The tensors of a batch by their places in it, such as `train[0]`.

        Raises:
            InputError: the batch has another structure than that of the split's first sample.
        """
        tensors, structure = self._flatten(split, indices)
        if structure != self._structures[split]:
            what = "samples have different structures"
            raise self._error(split, what, "tensors in the same tuples, lists or dictionaries")
        return tensors

    def forward_loss(self, model: Callable[..., Any], batch: dict[str, torch.Tensor]) -> StepOutput:
        tensors = list(batch.values())
        split = next(each for each in SPLITS if next(iter(batch)).startswith(each))
        inputs = tree_unflatten(tensors, self._structures[split])
        loss, count, sums = model(split, inputs, len(tensors[0]))
        nothing: tuple[torch.Tensor | float, int] = (0.0, 0)
        found = {name: sums.get(name, nothing) for name in self.metrics}
        return StepOutput(
            loss,
            count,
            {
                name: (torch.full_like(loss.detach(), total) if isinstance(total, float) else total, number)
                for name, (total, number) in found.items()
            },
        )

    def baseline(self, indices: Sequence[int]) -> dict[str, float]:  # noqa: ARG002 - optional
        """None, unless a subclass has one."""
        return {}

    def _flatten(self, split: Split, indices: Sequence[int]) -> tuple[dict[str, torch.Tensor], TreeSpec]:
        dataset = self._datasets[split]
        leaves, structure = tree_flatten_with_path(self.collate([dataset[each] for each in indices]))
        for path, leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                what = f"{keystr(path) or 'the batch'} is a {type(leaf).__name__}"
                raise self._error(split, what, "tensors only: convert or leave it out in `collate`")
        if not leaves:
            raise self._error(split, "the batch is empty", "at least one tensor")
        return {f"{split}{keystr(path)}": leaf for path, leaf in leaves}, structure

    def _wrong_dataset(self, split: Split) -> list[Problem]:
        dataset = self._datasets[split]
        where = f"{type(self).__qualname__}.make_dataset({split!r})"
        if isinstance(dataset, DataLoader):
            what = "is a DataLoader, and the recipe sets batch size, order and workers"
            return [Problem(where, what, "its `dataset`, and `collate` of the workload for its collate_fn")]
        sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if isinstance(dataset, IterableDataset) or not sized:
            what = f"is a {type(dataset).__name__}, whose samples have no index to resume from"
            return [Problem(where, what, "a map-style dataset, with `__len__` and `__getitem__`")]
        return []

    def _error(self, split: Split, what: str, fix: str) -> InputError:
        where = f"{type(self).__qualname__}, batch of {split}"
        return InputError("the samples of a dataset cannot be used", [Problem(where, what, fix)])
