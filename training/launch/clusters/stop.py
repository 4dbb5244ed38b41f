"""Stops the runs of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.launch.sky.task import cluster_name
from trainfleet.training.runs.reader import read_run

KUBERAY = "kuberay"


def require_unambiguous(name: str, members: Iterable[tuple[str, str]]) -> None:
    """Check that no run of its own has the name of a launch on several clusters.

    Raises:
        InputError: an unfinished run has it.
    """
    run = read_run(Path("runs") / name)
    if run.get("launches") and run.get("status") != "finished":
        what = "is both a run and a launch on several clusters"
        fix = f"--stack or --context for the run; else stop {', '.join(each for each, _ in members)}"
        raise InputError("which one?", [Problem(name, what, fix)])


def stop_all(
    runs: Iterable[tuple[str, str]], stop: Callable[[str], dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Stop each run; one that cannot be stopped keeps no other.

    Args:
        runs: their names, with their launchers.
        stop: stops a run on KubeRay, and returns what was done.

    Returns:
        What was done, and the problems of the runs that were not stopped.
    """
    done, problems = [], []
    for run, launcher in runs:
        if launcher != KUBERAY:
            how = f"sky down {cluster_name(run)}, or sky jobs cancel --name {cluster_name(run)}"
            fix = how if launcher == "sky" else "Ctrl-C in its launch"
            problems.append(Problem(run, f"`runs stop` does not stop runs of --on {launcher}", fix))
            continue
        try:
            done.append(stop(run))
        except TrainfleetError as error:
            fix = next((each.fix for each in error.problems if each.fix), "")
            problems.append(Problem(run, error.summary, fix))
    return done, problems
