"""Kills a run on purpose at a named point, for tests and for anyone who wants to see that it resumes:
TRAINFLEET_FAULT=POINT:STEP.

Points: `in-step` (gradients made, weights not yet changed), `staged` (a checkpoint copied aside, nothing
written), `partly-written`
(one item of a file written), `in-save` (a rank's files written), `before-marker` (all files written, the
commit marker not yet),
`in-purge` (an old checkpoint's marker removed, its files not yet); while data is prepared `in-preparation`
and `in-assembly` (so many
parts read, so many blocks written). The kill is SIGKILL, to the launcher and to this process, so
nothing can tidy up. Without the variable this costs one look at a dictionary.
"""

from __future__ import annotations

import os
import signal

FAULT = "TRAINFLEET_FAULT"
POINTS = ("in-step", "staged", "partly-written", "in-save", "before-marker", "in-purge")


def strike(point: str, step: int | str) -> None:
    """Kill the run if TRAINFLEET_FAULT names this point and step; a checkpoint's name counts as its step."""
    wanted = os.environ.get(FAULT)
    if wanted is None or wanted != f"{point}:{int(str(step).rpartition('-')[2])}":
        return
    launcher = os.environ.get("TRAINFLEET_PARENT")
    if launcher:
        os.kill(int(launcher), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
