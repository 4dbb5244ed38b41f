"""Work for the tests of jobs: done in a process of its own, found there by its module's name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.training.runtime import subprocess_jobs


def double(job: Mapping[str, Any], send: Callable[..., Any]) -> dict[str, Any]:
    """Tell of each number, and return twice their sum."""
    for number in job["numbers"]:
        send("number", value=number)
    return {"sum": 2 * sum(job["numbers"]), "pid": os.getpid()}


def refuse(job: Mapping[str, Any], send: Callable[..., Any]) -> None:
    """An error that the user can mend."""
    raise InputError("no such thing", [Problem("here", "is wrong", "do this"), Problem("there", "too")])


def break_off(job: Mapping[str, Any], send: Callable[..., Any]) -> None:
    """A bug."""
    raise ValueError("a bug")


def go_on(job: Mapping[str, Any], send: Callable[..., Any]) -> None:
    """Go on, whoever asks."""
    send("waiting")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(0.02)


def wait(job: Mapping[str, Any], send: Callable[..., Any]) -> str:
    """Wait to be asked to stop."""
    send("waiting")
    deadline = time.monotonic() + 120
    while not subprocess_jobs.stopping() and time.monotonic() < deadline:
        time.sleep(0.02)
    return "stopped"
