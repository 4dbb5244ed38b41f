"""Controllers of the batch size: the global batch grows with the gradient noise scale, and the micro batch is
chosen by memory and throughput.

The noise scale (McCandlish et al., arXiv:1812.06162, appendix A.1) is estimated from the gradient's norm over
half a batch and over the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainfleet.training.recipe.schema_control import BatchControl

MEMORY_OF_NOISE = 0.9
"""Weight of the previous average in a new one."""
MIN_MEASUREMENTS = 5
"""Measurements before each decision."""


class NoiseScale:
    """The batch size at which a step has as much signal as noise: tr(S) / |G|^2.

    Both estimates are noisy, so they are averaged separately and only their averages are divided.
    """

    def __init__(self) -> None:
        self.signal = 0.0
        self.noise = 0.0
        self.weight = 0.0

    def add(self, half: float, whole: float, batch: int) -> None:
        """Add the norms of the mean gradient over `batch / 2` and over `batch` samples."""
        signal = 2 * whole**2 - half**2
        noise = (half**2 - whole**2) * batch
        self.signal = MEMORY_OF_NOISE * self.signal + (1 - MEMORY_OF_NOISE) * signal
        self.noise = MEMORY_OF_NOISE * self.noise + (1 - MEMORY_OF_NOISE) * noise
        self.weight = MEMORY_OF_NOISE * self.weight + (1 - MEMORY_OF_NOISE)

    def value(self) -> float:
        """In samples; infinite if no signal is measurable."""
        return max(0.0, self.noise) / self.signal if self.signal > 0 else math.inf


class BatchController:
    """Doubles the global batch while the noise scale is at least twice as large, up to `largest`."""

    def __init__(self, settings: BatchControl, size: int) -> None:
        self.settings = settings
        self.first = self.size = size
        self.scale = NoiseScale()
        self.measured = 0

    @property
    def rate_factor(self) -> float:
        """By the square-root or the linear rule, relative to the initial batch size."""
        power = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[self.settings.rule]
        return float((self.size / self.first) ** power)

    def measures_noise(self, step: int) -> bool:
        return (
            self.settings.kind == "noise"
            and step % self.settings.every == 0
            and 2 * self.size <= self.settings.largest
        )

    def observe(self, norms: tuple[float, float] | None) -> str:
        """Add the measurements of a step; returns the reason if the batch grew, else an empty text."""
        if norms is None or not all(map(math.isfinite, norms)):
            return ""
        self.scale.add(*norms, self.size)
        self.measured += 1
        noise = self.scale.value()
        if self.measured < MIN_MEASUREMENTS or noise < 2 * self.size or 2 * self.size > self.settings.largest:
            return ""
        self.size, self.measured = 2 * self.size, 0
        scale = f"{noise:.0f}" if math.isfinite(noise) else "too large to measure"
        return f"the gradient noise scale is {scale}, at least twice the batch"

    def state(self) -> dict[str, Any]:
        return {"size": self.size, "measured": self.measured, "scale": vars(self.scale).copy()}

    def load_state(self, state: Mapping[str, Any], keep_size: bool = True) -> None:
        """Restore; without `keep_size`, the batch is the recipe's."""
        if keep_size:
            self.size = state["size"]
        self.measured = state["measured"]
        vars(self.scale).update(state["scale"])


def micro_batch_sizes(global_batch: int, world_size: int) -> list[int]:
    """Micro batches that divide each rank's share of a global batch evenly, in ascending order."""
    share = global_batch // world_size
    return (
        [size for size in range(1, share + 1) if share % size == 0] if global_batch % world_size == 0 else []
    )


def choose_micro_batch(
    sizes: Sequence[int], start: int, seconds: Callable[[int], float | None]
) -> tuple[int, str]:
    """The fastest micro batch per sample that fits into memory.

    Args:
        sizes: the candidates, in ascending order.
        start: the recipe's micro batch.
        seconds: time of a forward and backward pass, the same on all ranks; None if the size does not fit.

    Returns:
        The size and the reason. The search stops at the first size that does not fit or is not faster per
        sample than the best one so far.
    """
    tried: dict[int, float] = {}
    for size in [each for each in sizes if each >= start]:
        elapsed = seconds(size)
        if elapsed is None:
            break
        slower = bool(tried) and elapsed / size >= min(tried.values())
        tried[size] = elapsed / size
        if slower:
            break
    if not tried:  # the recipe's micro batch does not fit
        for size in [each for each in reversed(sizes) if each < start]:
            elapsed = seconds(size)
            if elapsed is not None:
                return size, f"the largest of {', '.join(map(str, sizes))} that fits into memory"
        return start, "no smaller micro batch fits into memory"
    best = min(tried, key=lambda size: tried[size])
    rates = ", ".join(f"{size}: {1 / per_sample:.1f}/s" for size, per_sample in tried.items())
    return best, f"samples per second and worker by micro batch: {rates}"
