"""What the follower processes share. A follower represents on this machine a run that executes elsewhere.

The launcher writes a spec to a file and starts the follower with its path. The follower reports events, and
is asked to stop and ended like the process of a local run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from trainfleet import process
from trainfleet.errors import TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.runtime.events import DETACH, EVENTS, PARENT, STOP_FILE, EventSink
from trainfleet.training.runtime.subprocess_jobs import send_error

STOPPED = 130
"""The exit code of a process that was ended by a signal."""


class Message(BaseModel):
    """A message between the processes of a launch, stored as a JSON file."""

    model_config = ConfigDict(extra="forbid")

    def write(self, file: Path) -> None:
        """Write it to `file`, readable by this user only: it may hold a kubeconfig or secrets."""
        write_whole(file, self.model_dump_json(), 0o600)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read it from `file`."""
        return cls.model_validate_json(file.read_text(encoding="utf-8"))


class Detached(Message):
    """What is recorded and shown of a run that the launcher no longer follows."""

    job: str | int
    cluster: str | None = None
    cluster_file: str | None = None
    """The file of Ray's cluster launcher on this machine."""
    namespace: str | None = None
    storage: str | None = None
    how: list[str]
    """Lines for the user: where the run is, and how to follow and end it."""

    def send(self, sink: EventSink) -> None:
        """Report it as the event `detached`."""
        sink.send("detached", **self.model_dump(exclude_none=True))


class FollowerSpec(Message):
    """What every follower needs."""

    detach: bool
    within_s: float
    """How long the run may wait for its machines."""
    saves: bool = True
    """Whether a stopped run saves a checkpoint first; evaluation and inference do not."""


Spec = TypeVar("Spec", bound=FollowerSpec)


class Stopped(BaseException):
    """SIGTERM: remove what was created, and exit.

    The signal may arrive within a call of the API, whose handlers of errors must not catch it.
    """


class NoteLog:
    """Sends the lines that the user sees, each once in a row."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self.last = ""

    def __call__(self, text: str) -> None:
        if text and text != self.last:
            self.last = text
            self._sink.send("note", text=text)


def stop_requested() -> bool:
    """Whether the launcher asked this process to stop the run."""
    return os.path.exists(os.environ.get(STOP_FILE) or "")  # noqa: PTH110 - asked often


def detach_requested() -> bool:
    """Whether the launcher asked this process to leave its run alone."""
    stop = os.environ.get(STOP_FILE)
    return stop is not None and Path(stop).with_name(DETACH).exists()


def follow(spec: type[Spec], run: Callable[[Spec, EventSink], int]) -> int:
    """The main function of a follower: call `run(spec, sink)`; the exit code, however it ends."""
    if PARENT in os.environ:
        process.die_with(int(os.environ[PARENT]))
    sink = EventSink(os.environ.get(EVENTS))
    try:
        with _on_sigterm():
            return exit_code(lambda: run(spec.read(Path(sys.argv[1])), sink), sink)
    finally:
        sink.close()


def exit_code(run: Callable[[], int], sink: EventSink) -> int:
    """The exit code of `run`; an error is reported to the launcher."""
    try:
        return run()
    except Stopped:
        return STOPPED
    except TrainfleetError as error:
        return send_error(sink, error)


@contextlib.contextmanager
def _on_sigterm() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if detach_requested():
            os._exit(STOPPED)
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    # NOTE: Ctrl-C reaches every process of the terminal, but only the launcher decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield


def event_fields(event: dict[str, Any]) -> dict[str, Any]:
    """The fields of an event without its kind."""
    return {key: value for key, value in event.items() if key != "kind"}


def print_line(text: str) -> None:
    """Write a line to the launch's log."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
