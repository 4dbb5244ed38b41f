"""Functions that the tests of jobs run in a subprocess, which imports them by the name of this module."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.training.runtime import subprocess_jobs


def double(job: Mapping[str, Any], send: Callable[..., Any]) -> dict[str, Any]:
    """Send each number, and return twice their sum."""
    for number in job["numbers"]:
        send("number", value=number)
    return {"sum": 2 * sum(job["numbers"]), "pid": os.getpid()}


def refuse(job: Mapping[str, Any], send: Callable[..., Any]) -> None:
    """Raise an error that the user can fix."""
    raise InputError("no such thing", [Problem("here", "is wrong", "do this"), Problem("there", "too")])


def fail(job: Mapping[str, Any], send: Callable[..., Any]) -> None:
    """Raise an error that is a bug."""
    raise ValueError("a bug")


def ignore_stop(job: Mapping[str, Any], send: Callable[..., Any]) -> None:
    """Keep running when asked to stop."""
    send("waiting")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(0.02)


def wait(job: Mapping[str, Any], send: Callable[..., Any]) -> str:
    """Wait for the request to stop."""
    send("waiting")
    deadline = time.monotonic() + 120
    while not subprocess_jobs.stopping() and time.monotonic() < deadline:
        time.sleep(0.02)
    return "stopped"
