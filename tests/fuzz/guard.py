"""Limits within which one input must be answered: CPU time, memory, and no file, socket or process of its
own.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

CPU_S = 5.0
"""Of one input. A normal one takes milliseconds."""
GROWTH_MIB = 400
"""By which one input may raise the peak of the process's memory."""
OUTSIDE = "outside-of-every-input"
"""A name that inputs use in paths. No file of this name may be opened."""

_watched: list[list[str]] = []


class LimitExceeded(BaseException):
    """Raised when an input takes too long."""


def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    if event == "open" and OUTSIDE in os.fsdecode(
        arguments[0] if isinstance(arguments[0], str | bytes) else ""
    ):
        _watched[-1].append(f"opens {arguments[0]!r}")
    elif event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        if arguments[0] != os.devnull:
            _watched[-1].append(f"writes {arguments[0]!r}")
    elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "exec"):
        if event != "exec":
            _watched[-1].append(f"starts {arguments[0]!r}")
    elif event == "socket.connect" and not str(arguments[1]).startswith("('127.0.0.1'"):
        _watched[-1].append(f"connects to {arguments[1]!r}")


sys.addaudithook(_on_audit)


def _exceeded(_signal: int, _frame: FrameType | None) -> None:
    raise LimitExceeded(f"more than {CPU_S:g} s of CPU time")


@contextmanager
def bounded(*, writes: Path | None = None) -> Iterator[None]:
    """Fail if the block exceeds a limit, or touches what an input must not reach. Main thread only.

    Args:
        writes: a folder in which files may be written.
    """
    before = signal.signal(signal.SIGVTALRM, _exceeded)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    touched: list[str] = []
    # Whichever input is first to use a module would have it compiled into a file.
    compiled, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    _watched.append(touched)
    try:
        yield
    finally:
        _watched.pop()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        sys.dont_write_bytecode = compiled
        signal.signal(signal.SIGVTALRM, before)
    allowed = repr(str(writes))[:-1] if writes else "\0"
    unwanted = [each for each in touched if not (each.startswith("writes ") and allowed in each)]
    assert not unwanted, unwanted
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) >> 10
    assert growth < GROWTH_MIB, f"the input raised the peak of memory by {growth} MiB"
