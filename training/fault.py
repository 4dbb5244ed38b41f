"""Kills a run on purpose at a named point, for tests and for anyone who wants to see that it resumes: TRAINFLEET_FAULT=POINT:STEP.

Points: `in-step` (gradients made, weights not yet changed), `in-save` (a checkpoint's files written, not yet in place),
`before-marker` (in place, its commit marker not yet written). The kill is SIGKILL, to the launcher and to this process, so
nothing can tidy up. Without the variable this costs one look at a dictionary.
"""

from __future__ import annotations

import os
import signal

FAULT = "TRAINFLEET_FAULT"
POINTS = ("in-step", "in-save", "before-marker")


def strike(point: str, step: int | str) -> None:
    """Kill the run if TRAINFLEET_FAULT names this point and step; a checkpoint's name counts as its step."""
    wanted = os.environ.get(FAULT)
    if wanted is None or wanted != f"{point}:{int(str(step).rpartition('-')[2])}":
        return
    launcher = os.environ.get("TRAINFLEET_PARENT")
    if launcher:
        os.kill(int(launcher), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
