"""What is measured: means and the workload's torchmetrics over all ranks, exact for uneven batches, and how
fast the run goes.

Used by the step loop, evaluation and the report. Rows of metrics.jsonl have `kind` (`train`, `validation`,
`test`), `step`
(steps done) and figures; validation and test figures are named `validation/loss`, `test/loss` and so on. Easy
to get wrong:
sums and states travel, never means, a rank may have seen nothing, and an interval's sums are part of a
checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from trainfleet.errors import InputError, Problem
from trainfleet.training.trainer.torchmetrics_compat import Metric
from trainfleet.training.workloads import Outcome, Split

PEAK_FLOPS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
}
"""Dense bf16 operations per second by a part of the device's name, first fit wins. Source: NVIDIA's data
sheets, figures without sparsity.
"""


class WeightedMeans(Metric):
    """Means by name, from sums and weights in float64 that are added up over ranks when they are asked for."""

    full_state_update = False
    sums: torch.Tensor
    weights: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("weights", torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, sums: torch.Tensor, weights: torch.Tensor) -> None:
        self.sums += sums
        self.weights += weights

    def compute(self) -> torch.Tensor:
        return self.sums / self.weights


class MetricsManager:
    """The figures of one phase (an interval of training, a validation): fed by every rank, asked by all at
    once.

    Args:
        names: means that the workload's `Outcome.extras` bring; `loss` comes first.
        device: where the sums live.
        collection: torchmetrics by name, fed with `Outcome.seen`; each gives one number.

    Raises:
        InputError: a metric whose state cannot be added up over ranks.
    """

    def __init__(
        self, names: Iterable[str], device: str = "cpu", collection: Mapping[str, Metric] | None = None
    ) -> None:
        self.names = ("loss", *names)
        self.device = device
        self._means = WeightedMeans(len(self.names)).to(device)
        self._collection = {name: _alone(metric).to(device) for name, metric in (collection or {}).items()}
        _check_mergeable(self._collection)
        self.reset()

    def reset(self) -> None:
        """Forget everything; a rank that then sees no batch counts for nothing."""
        self._means.reset()
        nothing = torch.zeros(len(self.names), dtype=torch.float64, device=self.device)
        self._means.update(nothing, nothing)
        for metric in self._collection.values():
            metric.reset()

    def update(self, outcome: Outcome) -> None:
        """Add a batch of this rank."""
        pairs = [(outcome.loss.detach(), outcome.weight), *(outcome.extras[name] for name in self.names[1:])]
        self._means.update(
            self._vector(total for total, _ in pairs), self._vector(weight for _, weight in pairs)
        )
        for name, metric in self._collection.items():
            metric.update(*outcome.seen[name])

    def compute(self) -> dict[str, float]:
        """The figures over all ranks. Every rank must ask; forgets nothing."""
        means = zip(self.names, self._means.compute().reshape(-1).tolist(), strict=True)
        return {
            name: value for name, value in means if not math.isnan(value)
        } | self._computed()  # a mean of nothing is left out

    def state(self) -> dict[str, Any]:
        """This rank's own sums and states on the CPU, for a checkpoint."""
        means = torch.stack((self._means.sums, self._means.weights)).cpu()
        return {
            "means": means,
            "collection": {name: _state(metric) for name, metric in self._collection.items()},
        }

    def load_state(self, *states: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state, or from several ranks' states added up."""
        self.reset()
        for state in states:
            sums, weights = state["means"].to(self.device)
            self._means.update(sums, weights)
            for name, metric in self._collection.items():
                _merge(metric, state["collection"].get(name), self.device)

    def _computed(self) -> dict[str, float]:
        """The collection's figures. The states travel as a whole: torchmetrics itself waits for ever where
        one rank has seen no batch.
        """
        if not self._collection:
            return {}
        states = [{name: _state(metric) for name, metric in self._collection.items()}]
        if dist.is_initialized():
            gathered: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, states[0])
            states = gathered
        figures = {}
        for name, metric in self._collection.items():
            whole = metric.clone()
            whole.reset()
            for state in states:
                _merge(whole, state[name], self.device)
            if whole.update_called:  # a figure of nothing is left out
                figures[name] = float(whole.compute())
        return figures

    def _vector(self, values: Iterable[torch.Tensor | float]) -> torch.Tensor:
        return torch.stack(
            [torch.as_tensor(value, dtype=torch.float64, device=self.device) for value in values]
        )


def collection_of(workload: Any, split: Split) -> dict[str, Metric]:
    """The torchmetrics that a workload declares for a split; none where it declares none."""
    declare = getattr(workload, "collections", None)
    return dict(declare(split)) if declare is not None else {}


def _alone(metric: Metric) -> Metric:
    """A metric that computes from its own state only."""
    metric.sync_on_compute = False
    metric.compute_with_cache = False
    return metric


def _check_mergeable(collection: Mapping[str, Metric]) -> None:
    from torchmetrics.utilities import dim_zero_mean

    problems = []
    for name, metric in collection.items():
        if metric.full_state_update or metric.full_state_update is None or metric.dist_sync_on_step:
            problems.append(
                Problem(
                    name,
                    f"{type(metric).__name__} says that its states cannot be added up (full_state_update)",
                    "another metric",
                )
            )
        elif any(reduction is dim_zero_mean for reduction in metric._reductions.values()):
            problems.append(
                Problem(
                    name,
                    f"{type(metric).__name__} keeps a mean, which uneven batches would distort",
                    "one that keeps a sum and a count",
                )
            )
    if problems:
        raise InputError("metrics that cannot be exact over several workers", problems)


def _state(metric: Metric) -> dict[str, Any]:
    """What a metric has gathered, on the CPU; nothing where it has seen no batch."""
    if not metric.update_called:
        return {}
    return {
        name: [each.cpu() for each in value] if isinstance(value, list) else value.cpu()
        for name, value in metric.metric_state.items()
    }


def _merge(metric: Metric, state: Mapping[str, Any] | None, device: str) -> None:
    if not state:
        return
    there = {
        name: [each.to(device) for each in value] if isinstance(value, Sequence) else value.to(device)
        for name, value in state.items()
    }
    if metric.update_called:
        metric.merge_state(there)
        return
    for name, value in there.items():
        setattr(metric, name, value)
    metric._update_count = 1  # what `update` would have noted: this state is not empty


@dataclass
class Speed:
    """How fast an interval went, by the clock; nothing here may reach a result.

    Attributes:
        compute, data: seconds in steps, and of these, waiting for data.
        saving, validating: seconds outside of steps.
        samples, steps: what was done in that time.
    """

    compute: float = 0.0
    data: float = 0.0
    saving: float = 0.0
    validating: float = 0.0
    samples: int = 0
    steps: int = 0

    def figures(
        self, sample_tokens: int, flops_per_token: float, peak: float | None, exchange: float | None = None
    ) -> dict[str, float | None]:
        """Rates over the time in steps. MFU = tokens/s · operations per token / peak of all devices; None
        where the peak is unknown.

        `exchange`: seconds of one step that went into waiting for other ranks' gradients, where somebody
        counts them.
        """
        rate = self.samples / self.compute if self.compute else 0.0
        seconds = self.compute / self.steps if self.steps else 0.0
        shared = (
            {} if exchange is None else {"communication": min(1.0, exchange / seconds) if seconds else 0.0}
        )
        return {
            **shared,
            "samples_per_second": rate,
            "tokens_per_second": rate * sample_tokens,
            "mfu": rate * sample_tokens * flops_per_token / peak if peak else None,
            "data_wait": self.data / self.compute if self.compute else 0.0,
            "step_seconds": seconds,
            "checkpoint_seconds": self.saving,
            "validation_seconds": self.validating,
        }


@dataclass
class Remaining:
    """Guesses the seconds left from what the steps since this start took, saving and validating included."""

    first_step: int
    seconds: float = field(default=0.0)

    def guess(self, step: int, steps: int) -> float:
        done = step - self.first_step
        return self.seconds / done * (steps - step) if done > 0 else 0.0


def peak_flops(device: str, world_size: int, precision: str) -> float | None:
    """Peak operations per second of all devices together; None for CPUs, unknown GPUs and fp32 (whose peak
    depends on TF32).
    """
    if not device.startswith("cuda") or precision != "bf16":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak * world_size for part, peak in PEAK_FLOPS.items() if part in name), None)
