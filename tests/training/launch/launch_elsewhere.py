"""A launch whose run is elsewhere, in a process of its own. The run is a file, which exists while it continues.

launch_elsewhere.py RUN_FILE RUNS_FOLDER [attached]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from trainfleet import console
from trainfleet.errors import TrainfleetError
from trainfleet.training.cli.outcome import start_and_report
from trainfleet.training.launch import base
from trainfleet.training.launch.base import Launcher
from trainfleet.training.launch.options import LaunchOptions
from trainfleet.training.launch.remote.follower import (
    Detached,
    FollowerSpec,
    Stopped,
    detach_requested,
    follow,
    stop_requested,
)
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime.events import EventSink

FAILS = "fails"
"""The file next to the run's that makes it fail."""
REPORTS = "reports"
"""The file next to the run's that makes it report something to show, all the time."""


class Spec(FollowerSpec):
    """The message to the follower."""

    file: str


class Options(LaunchOptions):
    """Whether it follows the run of another launch."""

    file: str
    attached: bool = False

    @property
    def follows_only(self) -> bool:
        return self.attached


class Elsewhere(Launcher[Options]):
    """Starts this file as its follower."""

    remote = detachable = True
    grace_seconds = 20.0
    options_model = Options

    def check(self, recipe: Recipe, target: Target) -> None:
        """Everything can run there."""

    def command(self, recipe: Recipe, file: Path, target: Target) -> list[str]:
        spec = file.with_name("spec.json")
        Spec(detach=False, within_s=1.0, file=self.options(target).file).write(spec)
        return [sys.executable, __file__, str(spec)]


def follow_run(spec: Spec, sink: EventSink) -> int:
    """Follow the run until it is stopped or left alone."""
    file = Path(spec.file)
    file.touch()
    sink.send("admitted")
    try:
        while not detach_requested():
            if stop_requested():
                raise Stopped
            file.write_text(f"{time.monotonic()}")
            if file.with_name(REPORTS).exists():
                sink.send("warning", text="the run continues")
            time.sleep(0.02)
    except Stopped:
        file.unlink()
        raise
    if file.with_name(FAILS).exists():
        raise TrainfleetError("the run failed: its loss is not finite")
    Detached(job="elsewhere", how=["the run is still there"]).send(sink)
    return 0


def launch(file: str, runs: str, *attached: str) -> None:
    """Launch the run and follow it."""
    base.LAUNCHERS["elsewhere"] = f"{__name__}:Elsewhere"
    options = Options(file=file, attached=bool(attached))
    start_and_report(Request("lm-tiny", on="elsewhere", storage=runs, options=options))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(follow(Spec, follow_run))
    sys.exit(console.run(lambda: launch(*sys.argv[1:])))
