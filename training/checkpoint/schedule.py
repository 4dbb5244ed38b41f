"""When to save: every fixed number of steps, or as often as the rule of Young and Daly says.

The rule weighs what saves cost against the work that a failure loses: with a stall of s seconds for each save
and a failure every M seconds, the loss is smallest with a save every sqrt(2 s M) seconds (J. W. Young, "A
first order approximation to the optimum checkpoint interval", 1974; J. T. Daly, 2006, refines it for s near
M).
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trainfleet.training.recipe.schema import CheckpointConfig

MACHINE_MTBF_HOURS = 6300.0
"""Hours between the failures of one machine: 2,048 machines with 8 H100 GPUs had 419 unexpected interruptions
in 54 days (Llama Team, "The Llama 3 Herd of Models", 2024, arXiv:2407.21783, section 3.3.4).
"""
FIRST_STEPS = 20
"""Until a save is measured. The first one comes early, because nothing is known before it."""
STALLS = 5
"""Latest saves whose median stall counts."""
CHANGE = 0.25
"""Share by which a new interval must differ from the old one. The loss is flat around its minimum: an
interval that is off by a quarter costs 3 % more than the best one.
"""
MOST_STEPS = 1 << 24
"""Whole numbers up to this are exact in fp32, in which the interval travels between ranks."""


def best_interval(stall_s: float, mtbf_s: float, written_s: float = 0.0) -> float:
    """Seconds between saves: by the rule, and not less than one save takes to be written, or the next one
    would wait for it.
    """
    return max(math.sqrt(2 * stall_s * mtbf_s), written_s)


class SaveSchedule:
    """After which steps to save. Rank 0 measures and decides; all ranks use what they have agreed on."""

    def __init__(
        self,
        config: CheckpointConfig | None = None,
        validation_every: int = 1,
        machines: int = 1,
        rank: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with step 0.

        Args:
            config: `every` and `mtbf_hours`.
            validation_every: steps between validations; without one, a checkpoint is never the best.
            machines: of the run.
            rank: 0 decides.
            clock: in seconds.
        """
        config = config or CheckpointConfig()
        self.auto = config.every == "auto"
        self.every = config.every if isinstance(config.every, int) else FIRST_STEPS
        self._mtbf_hours = config.mtbf_hours or MACHINE_MTBF_HOURS
        self._machines, self._decides, self._clock = machines, rank == 0, clock
        self._last, self._validation_every = 0, validation_every
        self._chosen, self._why, self._decided = self.every, "", False
        self._first_stall: float | None = None
        self._stalls: deque[float] = deque(maxlen=STALLS)
        self._timed = (0, clock())
        self._step_s = 0.0

    def start(self, step: int) -> None:
        """Begin to time steps, after `step`."""
        self._last, self._timed = step, (step, self._clock())

    def due(self, step: int) -> bool:
        """Whether to save after `step`. A chosen interval is moved by up to half of it to a validation."""
        if not self.auto:
            return step % self.every == 0
        done, to_validation = step - self._last, -step % self._validation_every
        if to_validation:
            return done >= self.every and to_validation > self.every / 2
        return done >= max(self.every / 2, self.every - self._validation_every / 2)

    @property
    def proposal(self) -> int:
        """For the values that all ranks add up in each step: rank 0's interval, 0 elsewhere."""
        return self._chosen if self.auto and self._decides else 0

    def agree(self, proposal: int) -> str | None:
        """Use the interval that the ranks have exchanged. Returns why, on rank 0, if it has changed."""
        if not self.auto or proposal == self.every:
            return None
        self.every = proposal
        return self._why

    @contextmanager
    def saving(self, step: int, complete: bool = True) -> Iterator[None]:
        """Time a save after `step`. `complete`: it is certain to begin, or its stall says nothing."""
        began, (first, since) = self._clock(), self._timed
        if step > first:
            self._step_s = (began - since) / (step - first)
        self._last = step
        yield
        self._timed = (step, self._clock())
        stall = self._timed[1] - began
        if complete and self._first_stall is None:
            self._first_stall = stall  # it allocates the memory for all later ones
        elif complete:
            self._stalls.append(stall)

    def written(self, seconds: float) -> None:
        """Decide again, after a save that was complete `seconds` after its beginning."""
        stall = statistics.median(self._stalls) if self._stalls else self._first_stall
        if not (self.auto and self._decides) or stall is None or not self._step_s:
            return
        interval = best_interval(stall, 3600 * self._mtbf_hours / self._machines, seconds)
        steps = max(1, min(MOST_STEPS, round(interval / self._step_s)))
        if self._decided and abs(steps - self._chosen) <= CHANGE * self._chosen:
            return
        machines = f"{self._machines} machine{'s' if self._machines > 1 else ''}"
        self._chosen, self._decided = steps, True
        self._why = (
            f"a checkpoint every {steps} steps, about {steps * self._step_s / 60:.1f} minutes: a save stops"
            f" the training for {stall:.2f} s and is written after {seconds:.1f} s, a step takes"
            f" {self._step_s:.2f} s, and each of {machines} fails every {self._mtbf_hours:g} hours"
        )

    def row(self) -> dict[str, int]:
        """For the run's rows, if the interval is chosen."""
        return {"checkpoint_every": self.every} if self.auto else {}

    def state(self) -> dict[str, Any] | None:
        """Plain values for a checkpoint."""
        return {"every": self.every, "decided": self._decided} if self.auto else None

    def load_state(self, state: dict[str, Any] | None, step: int) -> None:
        """Continue after a checkpoint's `step`, with its interval if it has one."""
        if self.auto and state is not None:
            self.every = self._chosen = int(state["every"])
            self._decided = bool(state["decided"])
        self.start(step)
