"""What the processes that follow a run elsewhere share: their order, how they say what they see, and how they
are ended.

Started by `trainfleet.training.launch.supervise` with a file that holds the order. Easy to get wrong: Ctrl-C
reaches the whole terminal, but the launcher
decides what it means; so SIGINT is not heard here, and SIGTERM once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from trainfleet import process
from trainfleet.errors import TrainfleetError
from trainfleet.training.runtime.events import EVENTS, PARENT, Sink

STOPPED = 130
"""The exit code of a process that was ended."""


class Stopped(Exception):  # noqa: N818 - not a fault
    """SIGTERM: take down what was started, and end."""


def follow(run: Callable[[dict[str, Any], Sink], int]) -> int:
    """Be the follower's process: call `run(order, sink)` until it returns the exit code, is stopped, or fails
    with words for the user.
    """
    if PARENT in os.environ:
        process.die_with(int(os.environ[PARENT]))
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sink = Sink(os.environ.get(EVENTS))
    try:
        with _on_sigterm():
            return ended(lambda: run(order, sink), sink)
    finally:
        sink.close()


def ended(run: Callable[[], int], sink: Sink) -> int:
    """The exit code of what was followed, however it ended; an error is told."""
    try:
        return run()
    except Stopped:
        return STOPPED
    except TrainfleetError as error:
        return tell(sink, error)


def tell(sink: Sink, error: TrainfleetError) -> int:
    """Hand an error to the launcher, which shows it as its own; the exit code."""
    problems = [[each.where, each.what, each.fix] for each in error.problems]
    sink.send("error", summary=error.summary, problems=problems, exit_code=error.exit_code)
    return error.exit_code


@contextlib.contextmanager
def _on_sigterm() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
