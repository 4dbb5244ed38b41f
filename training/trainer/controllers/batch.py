"""The batch size, steered: grown towards the gradient noise scale, and the micro batch chosen by memory and
throughput.

Used by `Steering` and, for the micro batch, by the step loop before its first step. The noise scale
(McCandlish et al.,
arXiv:1812.06162, appendix A.1) comes from the gradient's norm over half a batch and over the whole one. Easy
to get
wrong: both estimates are noisy and are averaged apart; only their averages are divided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainfleet.training.recipe.schema import BatchControl

MEMORY_OF_NOISE = 0.9
"""Share of the old average that a new measurement leaves."""
MEASURED_AT_LEAST = 5
"""Measurements before the first decision, and after one before the next."""


class NoiseScale:
    """The batch size at which a step is as much signal as noise, tr(S) / |G|^2, from averages of both."""

    def __init__(self) -> None:
        self.signal = 0.0
        self.noise = 0.0
        self.weight = 0.0

    def add(self, half: float, whole: float, batch: int) -> None:
        """Take the norms of the mean gradient over `batch / 2` and over `batch` samples."""
        signal = 2 * whole**2 - half**2
        noise = (half**2 - whole**2) * batch
        self.signal = MEMORY_OF_NOISE * self.signal + (1 - MEMORY_OF_NOISE) * signal
        self.noise = MEMORY_OF_NOISE * self.noise + (1 - MEMORY_OF_NOISE) * noise
        self.weight = MEMORY_OF_NOISE * self.weight + (1 - MEMORY_OF_NOISE)

    def value(self) -> float:
        """Samples; infinite where the signal drowns in noise."""
        return max(0.0, self.noise) / self.signal if self.signal > 0 else math.inf


class BatchController:
    """Doubles the global batch while the noise scale asks for more samples than it has, up to `largest`."""

    def __init__(self, settings: BatchControl, size: int) -> None:
        self.settings = settings
        self.first = self.size = size
        self.scale = NoiseScale()
        self.measured = 0

    @property
    def rate_factor(self) -> float:
        """By the square-root or the linear rule, over the first batch size."""
        power = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[self.settings.rule]
        return float((self.size / self.first) ** power)

    def wants_noise(self, step: int) -> bool:
        return (
            self.settings.kind == "noise"
            and step % self.settings.every == 0
            and 2 * self.size <= self.settings.largest
        )

    def observe(self, norms: tuple[float, float] | None) -> str:
        """Learn from a measured step; where the batch was grown, returns why."""
        if norms is None or not all(map(math.isfinite, norms)):
            return ""
        self.scale.add(*norms, self.size)
        self.measured += 1
        noise = self.scale.value()
        if (
            self.measured < MEASURED_AT_LEAST
            or noise < 2 * self.size
            or 2 * self.size > self.settings.largest
        ):
            return ""
        self.size, self.measured = 2 * self.size, 0
        said = f"{noise:.0f}" if math.isfinite(noise) else "beyond measure"
        return f"the gradient noise scale is {said}, twice the batch or more"

    def state(self) -> dict[str, Any]:
        return {"size": self.size, "measured": self.measured, "scale": vars(self.scale).copy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.size, self.measured = state["size"], state["measured"]
        vars(self.scale).update(state["scale"])


def micro_batch_sizes(global_batch: int, world_size: int) -> list[int]:
    """Micro batches that share a global batch over the ranks without a rest, small to large: what a probe may
    try.
    """
    share = global_batch // world_size
    return (
        [size for size in range(1, share + 1) if share % size == 0] if global_batch % world_size == 0 else []
    )


def choose_micro_batch(
    sizes: Sequence[int], start: int, seconds: Callable[[int], float | None]
) -> tuple[int, str]:
    """The fastest micro batch per sample that fits into memory.

    Args:
        sizes: what may be chosen, small to large.
        start: the recipe's own.
        seconds: the time of a forward and backward pass of a size, the same on all ranks; None where it does
        not fit.

    Returns:
        The size and why. Growing ends at the first size that does not fit or is no faster per sample than the
        one before it.
    """
    tried: dict[int, float] = {}
    for size in [each for each in sizes if each >= start]:
        taken = seconds(size)
        if taken is None:
            break
        slower = bool(tried) and taken / size >= min(tried.values())
        tried[size] = taken / size
        if slower:
            break
    if not tried:  # not even the recipe's own fits
        for size in [each for each in reversed(sizes) if each < start]:
            taken = seconds(size)
            if taken is not None:
                return size, f"the largest of {', '.join(map(str, sizes))} that fits into memory"
        return start, "nothing smaller fits into memory either"
    best = min(tried, key=lambda size: tried[size])
    told = ", ".join(f"{size}: {1 / taken:.1f}/s" for size, taken in tried.items())
    return best, f"samples per second and worker by micro batch: {told}"
