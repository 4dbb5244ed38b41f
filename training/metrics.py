"""What is measured: means over all ranks, exact for uneven batches, and how fast the run goes.

Used by the step loop and the report. Rows of metrics.jsonl have `kind` (`train`, `validation`, `test`), `step` (steps
done) and figures; validation and test figures are named `validation/loss`, `test/loss` and so on. Easy to get wrong:
sums and weights travel, never means, and an interval's sums are part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from training.lean_torchmetrics import Metric
from training.workloads import Outcome

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
"""Dense bf16 operations per second by a part of the device's name, first fit wins. Source: NVIDIA's data sheets, figures without sparsity."""


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
    """The means of one phase (an interval of training, a validation): fed by every rank, asked by all at once."""

    def __init__(self, names: Iterable[str], device: str = "cpu") -> None:
        self.names = ("loss", *names)
        self.device = device
        self._means = WeightedMeans(len(self.names)).to(device)
        self.reset()

    def reset(self) -> None:
        """Forget everything; a rank that then sees no batch counts for nothing."""
        self._means.reset()
        nothing = torch.zeros(len(self.names), dtype=torch.float64, device=self.device)
        self._means.update(nothing, nothing)

    def update(self, outcome: Outcome) -> None:
        """Add a batch of this rank."""
        pairs = [(outcome.loss.detach(), outcome.weight), *(outcome.extras[name] for name in self.names[1:])]
        self._means.update(self._vector(total for total, _ in pairs), self._vector(weight for _, weight in pairs))

    def compute(self) -> dict[str, float]:
        """The means over all ranks. Every rank must ask; forgets nothing."""
        return dict(zip(self.names, self._means.compute().tolist(), strict=True))

    def state(self) -> torch.Tensor:
        """This rank's own sums and weights, float64 [2, names] on the CPU, for a checkpoint."""
        return torch.stack((self._means.sums, self._means.weights)).cpu()

    def load_state(self, state: torch.Tensor) -> None:
        """Go on from a checkpoint's sums and weights."""
        self.reset()
        sums, weights = state.to(self.device)
        self._means.update(sums, weights)

    def _vector(self, values: Iterable[torch.Tensor | float]) -> torch.Tensor:
        return torch.stack([torch.as_tensor(value, dtype=torch.float64, device=self.device) for value in values])


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

    def figures(self, sample_tokens: int, flops_per_token: float, peak: float | None) -> dict[str, float | None]:
        """Rates over the time in steps. MFU = tokens/s · operations per token / peak of all devices; None where the peak is unknown."""
        rate = self.samples / self.compute if self.compute else 0.0
        return {
            "samples_per_second": rate,
            "tokens_per_second": rate * sample_tokens,
            "mfu": rate * sample_tokens * flops_per_token / peak if peak else None,
            "data_wait": self.data / self.compute if self.compute else 0.0,
            "step_seconds": self.compute / self.steps if self.steps else 0.0,
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
    """Peak operations per second of all devices together; None for CPUs, unknown GPUs and fp32 (whose peak depends on TF32)."""
    if not device.startswith("cuda") or precision != "bf16":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak * world_size for part, peak in PEAK_FLOPS.items() if part in name), None)
