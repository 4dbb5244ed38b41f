"""Metrics over all ranks, exact for uneven batches, and the run's throughput.

Ranks exchange sums and states, never means. A rank may have seen no batch, and an interval's sums are part of
a checkpoint.
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
from trainfleet.training.workloads import StepOutput

PEAK_FLOPS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10G": 70e12,
    "A10": 125e12,
}
"""Dense bf16 operations per second by part of the device's name; the first match wins, so longer
names come first. Source: NVIDIA's data sheets, without sparsity.
"""


class WeightedMeans(Metric):
    """Means from float64 sums and weights, which are reduced over ranks in `compute`."""

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
    """The metrics of one phase: an interval of training, or a validation.

    Args:
        names: the names in `StepOutput.metric_sums`; `loss` comes first.
        device: where the sums are.
        collection: torchmetrics by name, updated with `StepOutput.metric_inputs`; each computes one number.

    Raises:
        InputError: a metric's state cannot be merged over ranks.
    """

    def __init__(
        self, names: Iterable[str], device: str = "cpu", collection: Mapping[str, Metric] | None = None
    ) -> None:
        self.names = ("loss", *names)
        self.device = device
        self._means = WeightedMeans(len(self.names)).to(device)
        self._collection = {
            name: _without_sync(metric).to(device) for name, metric in (collection or {}).items()
        }
        _check_mergeable(self._collection)
        self.reset()

    def reset(self) -> None:
        """Discard everything; a rank that then sees no batch contributes nothing."""
        self._means.reset()
        nothing = torch.zeros(len(self.names), dtype=torch.float64, device=self.device)
        self._means.update(nothing, nothing)
        for metric in self._collection.values():
            metric.reset()

    def update(self, output: StepOutput, valid: torch.Tensor | None = None) -> None:
        """Add a batch of this rank, without waiting for the device. A metric that it lacks is not updated.

        Args:
            output: of the batch.
            valid: whether its sums count: a scalar on the device; None if they do.
        """
        loss = (output.loss.detach(), output.num_targets)
        pairs = [loss, *(output.metric_sums.get(name, (0.0, 0)) for name in self.names[1:])]
        sums, weights = (self._vector(each) for each in zip(*pairs, strict=True))
        if valid is not None:
            sums, weights = (each.where(valid, 0.0) for each in (sums, weights))
        self._means.update(sums, weights)
        for name, metric in self._collection.items():
            metric.update(*output.metric_inputs[name])

    def compute(self) -> dict[str, float]:
        """The metrics over all ranks; discards nothing. NOTE: collective, so every rank must call it."""
        means = zip(self.names, self._means.compute().reshape(-1).tolist(), strict=True)
        # The mean of no samples is omitted.
        return {name: value for name, value in means if not math.isnan(value)} | self._compute_collection()

    def state(self) -> dict[str, Any]:
        """This rank's own sums and states on the CPU, for a checkpoint."""
        means = torch.stack((self._means.sums, self._means.weights)).cpu()
        return {
            "means": means,
            "collection": {name: _state(metric) for name, metric in self._collection.items()},
        }

    def load_state(self, *states: Mapping[str, Any]) -> None:
        """Restore a checkpoint's state, or the sum of several ranks' states."""
        self.reset()
        for state in states:
            sums, weights = state["means"].to(self.device)
            self._means.update(sums, weights)
            for name, metric in self._collection.items():
                _merge(metric, state["collection"].get(name), self.device)

    def _compute_collection(self) -> dict[str, float]:
        """The collection's values over all ranks."""
        if not self._collection:
            return {}
        # NOTE: whole states are exchanged, because torchmetrics' own sync hangs if a rank has seen no batch.
        states = [{name: _state(metric) for name, metric in self._collection.items()}]
        if dist.is_initialized():
            gathered: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, states[0])
            states = gathered
        values = {}
        for name, metric in self._collection.items():
            whole = metric.clone()
            whole.reset()
            for state in states:
                _merge(whole, state[name], self.device)
            if whole.update_called:  # the value of no samples is omitted
                values[name] = float(whole.compute())
        return values

    def _vector(self, values: Iterable[torch.Tensor | float]) -> torch.Tensor:
        return torch.stack(
            [
                value.to(self.device, torch.float64)
                if isinstance(value, torch.Tensor)
                else torch.full((), value, dtype=torch.float64, device=self.device)
                for value in values
            ]
        )


def _without_sync(metric: Metric) -> Metric:
    """The metric, computing from its own state only."""
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
                    f"{type(metric).__name__} has states that cannot be merged (full_state_update)",
                    "another metric",
                )
            )
        elif any(reduction is dim_zero_mean for reduction in metric._reductions.values()):
            problems.append(
                Problem(
                    name,
                    f"{type(metric).__name__} has a mean as state, which is inexact for uneven batches",
                    "a metric that keeps a sum and a count",
                )
            )
    if problems:
        raise InputError("these metrics are not exact over several workers", problems)


def _state(metric: Metric) -> dict[str, Any]:
    """A copy of a metric's state on the CPU; empty if it has seen no batch.

    NOTE: a copy, because a writer thread reads it later, and metrics add to their tensors in place.
    """
    if not metric.update_called:
        return {}
    return {
        name: [_copied(each) for each in value] if isinstance(value, list) else _copied(value)
        for name, value in metric.metric_state.items()
    }


def _copied(value: torch.Tensor) -> torch.Tensor:
    return value.detach().to("cpu", copy=True)


def _merge(metric: Metric, state: Mapping[str, Any] | None, device: str) -> None:
    if not state:
        return
    on_device = {
        name: [each.to(device) for each in value] if isinstance(value, Sequence) else value.to(device)
        for name, value in state.items()
    }
    if metric.update_called:
        metric.merge_state(on_device)
        return
    for name, value in on_device.items():
        setattr(metric, name, value)
    metric._update_count = 1  # as `update` does: this state is not empty


@dataclass
class Throughput:
    """Wall-clock times of an interval. They must not influence a result.

    Attributes:
        compute, data: seconds in steps, and of these the seconds of waiting for data.
        saving, validating: seconds outside of steps.
        samples, steps: processed in that time.
    """

    compute: float = 0.0
    data: float = 0.0
    saving: float = 0.0
    validating: float = 0.0
    samples: int = 0
    steps: int = 0

    def rates(
        self, sample_tokens: int, flops_per_token: float, peak: float | None, sync: float | None = None
    ) -> dict[str, float | None]:
        """Rates over the time in steps. MFU = tokens/s · operations per token / peak of all devices; None if
        the peak is unknown. `sync`: seconds of one step spent waiting for gradient reduction, if measured.
        """
        rate = self.samples / self.compute if self.compute else 0.0
        seconds = self.compute / self.steps if self.steps else 0.0
        communication = (
            {} if sync is None else {"communication": min(1.0, sync / seconds) if seconds else 0.0}
        )
        return {
            **communication,
            "samples_per_second": rate,
            "tokens_per_second": rate * sample_tokens,
            "mfu": rate * sample_tokens * flops_per_token / peak if peak else None,
            "data_wait": self.data / self.compute if self.compute else 0.0,
            "step_seconds": seconds,
            "checkpoint_seconds": self.saving,
            "validation_seconds": self.validating,
        }


@dataclass
class EtaEstimator:
    """Estimates the seconds left from the steps since this start, including saving and validation."""

    first_step: int
    seconds: float = field(default=0.0)

    def estimate(self, step: int, steps: int) -> float:
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


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Metrics on one line."""
    return " ".join(f"{name} {value:.4f}" for name, value in metrics.items())
