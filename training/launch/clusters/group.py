"""Starts a launch process for each cluster, follows all of them, and aggregates their runs.

Every process is a launch like that of `trainfleet launch`: it resumes, detaches and stops in the same way. A
run that fails ends no other.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

from trainfleet import process
from trainfleet.errors import InputError, Interrupted, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.launch.base import find
from trainfleet.training.launch.clusters.checks import REJECTED, Checks, Launchable, nothing_left, prepare_all
from trainfleet.training.launch.clusters.display import GroupDisplay, group_display
from trainfleet.training.launch.clusters.entries import located
from trainfleet.training.launch.clusters.member import ENDED, MemberSpec
from trainfleet.training.launch.clusters.summary import FINISHED, Member, overall, write_report
from trainfleet.training.launch.request import Request
from trainfleet.training.launch.supervise import RERUN
from trainfleet.training.runtime import events
from trainfleet.training.runtime.run_lock import locked, workspace

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
        group = _Group(members, [each.request() for each in launches], folder, work, view)
        group.record(launches)
        group.run()
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


def _document(member: Member) -> dict[str, Any]:
    found = {"cluster": member.name, "on": member.on, "run": str(member.run_dir), "status": member.status}
    known = {key: value for key, value in member.document.items() if key not in ("run", "status", "losses")}
    return {**found, **known, **({"error": member.summary} if member.summary else {})}


class _Group:
    """The processes of all clusters, while they run."""

    def __init__(
        self, members: list[Member], requests: Sequence[Request], folder: Path, work: Path, view: GroupDisplay
    ) -> None:
        self.members, self.requests, self.folder, self.work, self.view = members, requests, folder, work, view
        self.by_name = {each.name: each for each in members}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.signals: list[int] = []
        self.forwarded = 0

    def run(self) -> None:
        """Start all launches and follow them until the last has ended."""
        process.adopt_orphans()
        others = process.below()
        listener = events.Listener(self.work / "events")
        try:
            with process.on_stop(self._note), contextlib.ExitStack() as logs:
                for member, request in zip(self.members, self.requests, strict=True):
                    self.processes[member.name] = self._start(
                        member, request, logs.enter_context(self._log(member))
                    )
                while any(each.poll() is None for each in self.processes.values()):
                    self._handle(listener)
                    self._on_signals()
                    time.sleep(process.POLL_S)
        finally:
            process.end_tree(process.END_GRACE_S, others)
            listener.close()
            self._handle(listener)
            self.view.close()
        for name, child in self.processes.items():
            member = self.by_name[name]
            if not member.ended:
                member.status = "interrupted" if self.signals else "failed"
                member.summary = (
                    f"its launch ended with exit code {child.returncode}; {self._log_file(member)}"
                )

    def record(self, launches: Sequence[Launchable]) -> None:
        """Write what the checks printed to the logs."""
        for each in launches:
            with self._log(each.member) as log:
                log.write("".join(f"{line}\n" for line in each.lines).encode())

    def _start(self, member: Member, request: Request, log: IO[bytes]) -> subprocess.Popen[bytes]:
        spec = self.work / f"{member.name}.json"
        options = request.options.model_dump() if request.options is not None else {}
        skipped = ("on", "options")
        MemberSpec(
            cluster=member.name,
            address=str(self.work / "events"),
            parent=os.getpid(),
            on=request.on,
            request={
                each.name: getattr(request, each.name) for each in fields(request) if each.name not in skipped
            },
            options=options,
        ).write(spec)
        command = [sys.executable, "-m", "trainfleet.training.launch.clusters.member", str(spec)]
        # A session of its own: Ctrl-C in the terminal reaches only the group, which passes it on.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    @contextlib.contextmanager
    def _log(self, member: Member) -> Iterator[IO[bytes]]:
        file = self._log_file(member)
        file.parent.mkdir(exist_ok=True)
        with file.open("ab") as log:
            yield log

    def _log_file(self, member: Member) -> Path:
        return self.folder / LOGS / f"{member.name}.log"

    def _handle(self, listener: events.Listener) -> None:
        for event in listener.drain():
            member = self.by_name.get(str(event.pop("cluster", "")))
            if member is None:
                continue
            match event["kind"]:
                case "step" | "note" if member.status == "starting":
                    member.status = "running"
                case "interval":
                    member.status, member.row = "running", event["row"]
                case kind if kind == ENDED:
                    member.status = event["status"]
                    member.document = event.get("document", {})
                    member.summary, member.problems = event.get("summary", ""), event.get("problems", [])
                    self.view.handle(member, {"kind": "note", "text": member.summary or member.status})
                    continue
            self.view.handle(member, event)

    def _note(self, number: int) -> None:
        if number == signal.SIGHUP:
            process.leave_terminal()
        self.signals.append(number)

    def _on_signals(self) -> None:
        """Pass a signal on: Ctrl-C stops all runs after a question, everything else detaches from those that
        continue without their launcher.
        """
        while self.forwarded < len(self.signals):
            number = self.signals[self.forwarded]
            if number == signal.SIGINT and not self.forwarded:
                answer = self._ask()
                if answer == "":
                    self.signals.clear()
                    return
                number = signal.SIGTERM if answer == "d" else signal.SIGINT
                self.view.warn("detaching" if answer == "d" else "stopping all runs")
            self.forwarded += 1
            for child in self.processes.values():
                if child.poll() is None:
                    child.send_signal(number)

    def _ask(self) -> str:
        """What Ctrl-C means; without a question if no run continues without its launcher."""
        left = [each for each in self.members if self.processes[each.name].poll() is None]
        leavable = [each.name for each in left if find(each.on).detachable]
        if not leavable:
            return "s"
        rest = " and stop the others" if len(leavable) < len(left) else ""
        answers = {
            "s": "save and stop all runs",
            "d": f"detach from {', '.join(leavable)}{rest}",
            "": "continue",
        }
        return self.view.ask(answers, lambda: len(self.signals) > 1)
