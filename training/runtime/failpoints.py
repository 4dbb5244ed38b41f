"""Kills a run at a named point, to test that it resumes: TRAINFLEET_FAULT=POINT:STEP.

The points of a step are in POINTS; data preparation adds `in-preparation`, `in-assembly` and `in-upload`,
with the number of parts read, blocks written or files copied. Launcher and process get SIGKILL,
so that nothing can clean up.
"""

from __future__ import annotations

import os
import signal

FAULT = "TRAINFLEET_FAULT"
POINTS = (
    "in-step",  # gradients computed, weights unchanged
    "staged",  # a checkpoint's snapshot taken, nothing written
    "partly-written",  # one item of a file written
    "in-save",  # a rank's files written
    "before-marker",  # all files written, the commit marker missing
    "in-purge",  # the marker of an old checkpoint removed, its files not yet
)


def hit(point: str, step: int | str) -> None:
    """Kill the run if TRAINFLEET_FAULT names this point and step; the name of a checkpoint counts as its
    step.
    """
    fault = os.environ.get(FAULT)
    if fault is None or fault != f"{point}:{int(str(step).rpartition('-')[2])}":
        return
    launcher = os.environ.get("TRAINFLEET_PARENT")
    if launcher:
        os.kill(int(launcher), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
