"""Starts a launch process for each cluster, follows all of them, and aggregates their runs. A run that fails
ends no other.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainfleet import process
from trainfleet.errors import InputError, Interrupted, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.launch.clusters.checks import (
    REJECTED,
    Checks,
    Launchable,
    left_alone,
    nothing_left,
    prepare_all,
)
from trainfleet.training.launch.clusters.display import GroupDisplay, group_display
from trainfleet.training.launch.clusters.entries import located
from trainfleet.training.launch.clusters.processes import Processes
from trainfleet.training.launch.clusters.state import STATE, UNATTENDED, folder_of, recorded
from trainfleet.training.launch.clusters.summary import FINISHED, Member, overall, write_report
from trainfleet.training.launch.request import Request
from trainfleet.training.launch.run_record import RERUN
from trainfleet.training.runtime.run_lock import locked
from trainfleet.training.stores.lease import IN_PROGRESS
from trainfleet.workspace import workspace

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


def start(
    name: str,
    requests: Sequence[Request],
    names: Sequence[str],
    *,
    as_json: bool,
) -> GroupOutcome:
    """Run a recipe on every cluster to its end. Runs that an earlier launch detached from are left alone.

    Args:
        name: the group's name.
        requests: the launch on each cluster.
        names: the clusters' names.
        as_json: whether to show no progress.

    Raises:
        InputError: a cluster cannot run it, another launch of this group is in progress, or the record of
            the one before cannot be read.
        Interrupted: a signal ended the checks; nothing was started.
    """
    folder, before = folder_of(name), recorded(name)
    fresh = any(each.fresh for each in requests)
    unattended = {
        str(each.get("cluster")): each for each in before if each["status"] in UNATTENDED and not fresh
    }
    launches, left, problems = prepare_all(requests, names, os.environ, unattended)
    members = sorted([*left, *(each.member for each in launches)], key=lambda each: names.index(each.name))
    # Their runs may still train, and are stopped by the group's name.
    others = [each for each in before if each.get("cluster") not in names and each["status"] != "finished"]

    def record(document: dict[str, Any]) -> None:
        state = {**document, "clusters": [*document["clusters"], *others]}
        write_whole(folder / STATE, json.dumps(state, indent=1))

    with nothing_left(folder), locked(folder, fresh=False), workspace() as work:
        view = group_display(as_json, members)
        try:
            _require_valid(launches, problems, view)
        except TrainfleetError:
            view.close()
            raise
        state = {"name": name, "clusters": [_document(each) for each in members]}
        record(state)
        group = Processes(folder / LOGS, work, view)
        _record_checks(launches, group)
        _follow(launches, left, unattended, group)
        summaries = write_report(members, folder / REPORT)
        document = {
            **state,
            "clusters": [_document(each) for each in members],
            "overall": overall(members, summaries),
            "report": str(folder / REPORT) if summaries else None,
        }
        record(document)
    return GroupOutcome(members, document)


def _follow(
    launches: Sequence[Launchable],
    left: Sequence[Member],
    unattended: Mapping[str, Mapping[str, Any]],
    group: Processes,
) -> None:
    """Start the launches, and follow them to their ends."""
    with group.followed():
        for member in left:
            group.show(member, {"kind": "note", "text": "detached: it continues, and is left alone"})
        for each in launches:
            group.start(each.member, each.request())
        while group.poll():
            time.sleep(process.POLL_S)
    for each in launches:
        # SkyPilot tells only the launch itself that it has the run.
        if each.member.summary == IN_PROGRESS and each.member.name in unattended:
            left_alone(each.member, unattended[each.member.name])


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


def _record_checks(launches: Sequence[Launchable], group: Processes) -> None:
    """Write what the checks printed to the logs."""
    for each in launches:
        with group.log(each.member) as log:
            log.write("".join(f"{line}\n" for line in each.lines).encode())


def _document(member: Member) -> dict[str, Any]:
    found = {"cluster": member.name, "on": member.on, "run": str(member.run_dir), "status": member.status}
    known = {key: value for key, value in member.document.items() if key not in ("run", "status", "losses")}
    return {**found, **known, **({"error": member.summary} if member.summary else {})}
