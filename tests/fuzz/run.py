"""Runs one target on a number of inputs, from a seed, and counts what was accepted and rejected."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, seed, settings

from tests.fuzz.guard import bounded
from tests.fuzz.targets import Target


@dataclass
class Tried:
    """The figures of one run."""

    accepted: int = 0
    rejected: int = 0
    seconds: float = 0.0

    @property
    def inputs(self) -> int:
        """How many inputs were tried."""
        return self.accepted + self.rejected


def run(target: Target, inputs: int, number: int) -> Tried:
    """Try a target's examples and `inputs` others.

    Raises:
        AssertionError: an input opened a file, wrote outside its folder, or took too much memory.
        LimitExceeded: an input took too long.
        Exception: any other exception of the reader.
    """
    tried, began = Tried(), time.monotonic()

    def attempt(value: Any) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                with bounded(writes=folder):
                    target.call(value, folder)
            except target.rejects as error:
                if not str(error).strip():
                    raise AssertionError("the error has no message") from error
                tried.rejected += 1
            else:
                tried.accepted += 1

    quiet = settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    test = quiet(seed(number)(given(target.inputs())(attempt)))
    for each in target.examples:
        test = example(each)(test)
    test()
    tried.seconds = time.monotonic() - began
    return tried
