"""Starts a launch process for each cluster, follows all of them, and aggregates their runs. A run that fails
ends no other.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet import process
from trainfleet.errors import InputError, Interrupted, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.launch.clusters.checks import REJECTED, Checks, Launchable, nothing_left, prepare_all
from trainfleet.training.launch.clusters.display import GroupDisplay, group_display
from trainfleet.training.launch.clusters.entries import located
from trainfleet.training.launch.clusters.processes import Processes
from trainfleet.training.launch.clusters.summary import FINISHED, Member, overall, write_report
from trainfleet.training.launch.request import Request
from trainfleet.training.launch.supervise import RERUN
from trainfleet.training.runtime.run_lock import locked
from trainfleet.workspace import workspace

STATE = "clusters.json"
REPORT = "report.html"
LOGS = "logs"


@dataclass(frozen=True)
class GroupOutcome:
    """How the launches on all clusters ended; `document` is what `--json` prints."""

    members: list[Member]
    document: dict[str, Any]

    @property
    def error(self) -> TrainfleetError | None:
        """The runs that failed, with their reasons; None if there are none."""
        failed = [each for each in self.members if each.status not in FINISHED]
        if not failed:
            return None
        if all(each.status in ("interrupted", "stopped") for each in failed):
            return Interrupted(f"{len(failed)} of {len(self.members)} runs were stopped; {RERUN}")
        problems = []
        for each in failed:
            problems.append(Problem(each.name, each.summary or each.status, str(each.run_dir)))
            problems += located(each.name, [Problem(*problem) for problem in each.problems])
        return TrainfleetError(f"{len(failed)} of {len(self.members)} runs failed; {RERUN}", problems)


def folder_of(name: str) -> Path:
    """Where the group's report, state and logs are. Its runs are in folders of their own."""
    return (Path("runs") / f"{name}.clusters").absolute()


def runs_of(name: str) -> list[Path]:
    """The folders of the unfinished runs of a group that was launched from this folder."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((folder_of(name) / STATE).read_text(encoding="utf-8"))["clusters"]
        return [Path(each["run"]) for each in found if each["status"] != "finished"]
    return []


def start(
    name: str,
    requests: Sequence[Request],
    names: Sequence[str],
    *,
    as_json: bool,
) -> GroupOutcome:
    """Run a recipe on every cluster to its end.

    Args:
        name: the group's name.
        requests: the launch on each cluster.
        names: the clusters' names.
        as_json: whether to show no progress.

    Raises:
        InputError: a cluster cannot run it, or another launch of this group is in progress.
        Interrupted: a signal ended the checks; nothing was started.
    """
    launches, problems = prepare_all(requests, names, os.environ)
    members = [each.member for each in launches]
    folder = folder_of(name)
    with nothing_left(folder), locked(folder, fresh=False), workspace() as work:
        view = group_display(as_json, members)
        try:
            _require_valid(launches, problems, view)
        except TrainfleetError:
            view.close()
            raise
        state = {"name": name, "clusters": [_document(each) for each in members]}
        write_whole(folder / STATE, json.dumps(state, indent=1))
        group = Processes(folder / LOGS, work, view)
        _record(launches, group)
        with group.followed():
            for each in launches:
                group.start(each.member, each.request())
            while group.poll():
                time.sleep(process.POLL_S)
        summaries = write_report(members, folder / REPORT)
        document = {
            **state,
            "clusters": [_document(each) for each in members],
            "overall": overall(members, summaries),
            "report": str(folder / REPORT) if summaries else None,
        }
        write_whole(folder / STATE, json.dumps(document, indent=1))
    return GroupOutcome(members, document)


def _require_valid(launches: list[Launchable], problems: list[Problem], view: GroupDisplay) -> None:
    """Check the runs where they would train, also if others cannot be launched: all problems at once.

    Raises:
        InputError: every problem on every cluster.
        Interrupted: a signal ended the checks.
    """
    checks = Checks(launches, view)
    if found := [*problems, *checks.run()]:
        checks.forget()
        raise InputError(REJECTED, found)


def _record(launches: Sequence[Launchable], group: Processes) -> None:
    """Write what the checks printed to the logs."""
    for each in launches:
        with group.log(each.member) as log:
            log.write("".join(f"{line}\n" for line in each.lines).encode())


def _document(member: Member) -> dict[str, Any]:
    found = {"cluster": member.name, "on": member.on, "run": str(member.run_dir), "status": member.status}
    known = {key: value for key, value in member.document.items() if key not in ("run", "status", "losses")}
    return {**found, **known, **({"error": member.summary} if member.summary else {})}
