"""Runs the programs that build, log in and push. None is left running when this process is interrupted."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from trainfleet.errors import Interrupted, MissingToolError, Problem, TrainfleetError
from trainfleet.process import on_stop
from trainfleet.toolchain import kill_tree, spawn

GRACE_S = 10.0
"""How long a program may take to remove its working files after SIGTERM."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted in the block on Ctrl-C, SIGTERM and SIGHUP."""

    def stop(number: int) -> None:
        raise Interrupted(f"interrupted by {signal.Signals(number).name}")

    with on_stop(stop):
        yield


def run_visibly(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a command whose output goes to stderr.

    Raises:
        TrainfleetError: it failed; its messages are on stderr.
    """
    output = sys.stderr.fileno()
    child = _start(command, environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    with _ended(child):
        code = child.wait()
    if code:
        raise TrainfleetError(
            f"{command[0]} failed",
            [Problem(shlex.join(command[:2]), f"exit code {code}", "its messages are above")],
        )


def run_quietly(
    command: Sequence[str], environment: Mapping[str, str] | None = None, stdin: str = ""
) -> tuple[int, str, str]:
    """Run a command; returns its exit code, stdout and stderr."""
    pipe = subprocess.PIPE
    child = _start(command, environment or {}, stdin=pipe, stdout=pipe, stderr=pipe)
    with _ended(child):
        out, err = child.communicate(stdin.encode())
    return child.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def _start(command: Sequence[str], environment: Mapping[str, str], **streams: int) -> subprocess.Popen[bytes]:
    try:
        return spawn(list(command), env=os.environ | environment, start_new_session=True, **streams)
    except FileNotFoundError as error:
        raise MissingToolError(
            f"{command[0]} is not installed", [Problem(command[0], "is not on PATH")]
        ) from error


@contextlib.contextmanager
def _ended(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the program and its children if the block is left early: SIGTERM, then SIGKILL."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        kill_tree(child)
        raise
