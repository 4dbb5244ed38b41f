"""Validates a run where it will train, before it starts: its workload, its storage and the first row of data.

A launcher says what does this (`Launcher.run_checks`): a pod, a process on a host, or one on this machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet import process
from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.launch.remote.follower import Stopped
from trainfleet.training.launch.remote.log_stream import Line, parse
from trainfleet.training.launch.remote.ray_job import FILES_FOLDER, RECIPE_FILE
from trainfleet.training.launch.request import Target
from trainfleet.training.recipe.load import dump, without_recipe_keys
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime.code_archive import CODE
from trainfleet.training.runtime.events import PARENT
from trainfleet.training.runtime.progress import duration
from trainfleet.training.runtime.subprocess_jobs import error_from

MODULE = "trainfleet.training.launch.remote.validate"
RUN_S = 180.0
"""How long a validation may take."""
END_S = 5.0
"""How long a process may take to end once it is asked to."""


class RunCheck(ABC):
    """What validates a run in one place."""

    where: str = ""
    """The place, where a launch may use several."""

    @abstractmethod
    def run(
        self, notify: Callable[[str], Any], show: Callable[[str], Any], stopping: Callable[[], bool]
    ) -> None:
        """Validate the run, and leave nothing behind.

        Args:
            notify: takes lines for the user.
            show: takes lines for the log: what the validation printed.
            stopping: whether it shall end early.

        Raises:
            TrainfleetError: the run cannot train there.
            Stopped: it was ended early.
        """


@dataclass(frozen=True)
class Unchecked(RunCheck):
    """A place where nothing can validate the run before it starts."""

    why: str
    where: str = ""

    def run(
        self,
        notify: Callable[[str], Any],
        show: Callable[[str], Any],  # noqa: ARG002 - the base class's signature
        stopping: Callable[[], bool],  # noqa: ARG002
    ) -> None:
        """Say why it is not validated."""
        notify(f"the workload is not checked beforehand: {self.why}")


@dataclass(frozen=True)
class ProcessCheck(RunCheck):
    """A process that validates the run, on this machine or through ssh."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    given: str = ""
    """What it reads. Its input is then kept open, so that a process elsewhere sees that this one has gone."""
    where: str = ""

    def run(
        self, notify: Callable[[str], Any], show: Callable[[str], Any], stopping: Callable[[], bool]
    ) -> None:
        """Run the process to its end, or end it."""
        began = time.monotonic()
        notify("checking the workload")
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            child = subprocess.Popen(
                self.command,
                env=dict(self.env),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                self._give(child)
                while child.poll() is None:
                    if stopping():
                        raise Stopped
                    if time.monotonic() - began > RUN_S:
                        notify(f"the workload was not checked: it did not end within {duration(RUN_S)}")
                        return
                    time.sleep(process.POLL_S)
            finally:
                _end(child)
            output.seek(0)
            printed = raise_reported(map(parse, output.read().splitlines()), show)
        if child.returncode != 0:
            last = printed[-1] if printed else "it printed nothing"
            what = f"exit code {child.returncode}; it printed last: {last}"
            raise TrainfleetError("the workload check failed", [Problem(self.where, what)])
        notify(f"the workload is valid (checked in {duration(time.monotonic() - began)})")

    def _give(self, child: subprocess.Popen[str]) -> None:
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; its exit code says more
            child.stdin.write(self.given)
            child.stdin.flush()


def raise_reported(lines: Iterable[Line], show: Callable[[str], Any]) -> list[str]:
    """Raise the error that a validation reported, else return the lines that it printed.

    Raises:
        TrainfleetError: the run cannot train there.
    """
    printed = []
    for line in lines:
        if isinstance(line, str):
            show(line)
            printed += [line.strip()] if line.strip() else []
        elif line["kind"] == "error":
            raise error_from(line)
    return printed


@dataclass(frozen=True)
class LocalCheck(RunCheck):
    """A process of this machine, which validates the run with this machine's packages and permissions."""

    recipe: Recipe
    code: str = ""
    """The folder of the user's code, or empty."""

    def run(
        self, notify: Callable[[str], Any], show: Callable[[str], Any], stopping: Callable[[], bool]
    ) -> None:
        """Run the process with the recipe in a temporary folder."""
        with tempfile.TemporaryDirectory(prefix=f"tf-{os.getpid()}-") as folder:
            (Path(folder) / RECIPE_FILE).write_text(dump(self.recipe), encoding="utf-8")
            env = {key: value for key, value in without_recipe_keys(os.environ).items() if key != CODE}
            env |= {FILES_FOLDER: folder, PARENT: str(os.getpid())} | ({CODE: self.code} if self.code else {})
            ProcessCheck((sys.executable, "-m", MODULE), env).run(notify, show, stopping)


def on_this_machine(recipe: Recipe, target: Target) -> RunCheck:
    """The check of a run that trains on this machine."""
    folder = target.code.folder if target.code is not None else None
    return LocalCheck(recipe, str(folder) if folder is not None else target.code_url)


def _end(child: subprocess.Popen[str]) -> None:
    """End the process and those that it started."""
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        os.killpg(child.pid, number)
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            continue
