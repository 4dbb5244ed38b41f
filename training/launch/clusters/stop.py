"""Stops the runs of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.runs.reader import read_run


def require_unambiguous(name: str, members: Iterable[str]) -> None:
    """Check that no run of its own has the name of a launch on several clusters.

    Raises:
        InputError: an unfinished run has it.
    """
    run = read_run(Path("runs") / name)
    if run.get("launches") and run.get("status") != "finished":
        what = "is both a run and a launch on several clusters"
        fix = f"--stack or --context for the run; else stop {', '.join(members)}"
        raise InputError("which one?", [Problem(name, what, fix)])


def stop_all(
    runs: Iterable[Path], stop: Callable[[Path], dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Stop each run; one that cannot be stopped keeps no other.

    Args:
        runs: their folders.
        stop: stops a run, and returns what was done.

    Returns:
        What was done, and the problems of the runs that were not stopped.
    """
    done, problems = [], []
    for run in runs:
        try:
            done.append(stop(run))
        except TrainfleetError as error:
            fix = next((each.fix for each in error.problems if each.fix), "")
            problems.append(Problem(run.name, error.summary, fix))
    return done, problems
