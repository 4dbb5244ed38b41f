"""Launch processes that run at once: starts them, follows their events, and passes signals on.

Every process is a launch like that of `trainfleet launch`: it resumes, detaches and stops in the same way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from trainfleet import process
from trainfleet.training.launch.base import find
from trainfleet.training.launch.clusters.display import GroupDisplay, QuietGroup
from trainfleet.training.launch.clusters.member import ENDED, MemberSpec
from trainfleet.training.launch.clusters.summary import Member
from trainfleet.training.launch.request import Request
from trainfleet.training.runtime import events

FAULTS = ("hung", "preemption", "save_failed", "roll_back", "quarantine")
"""Events of a run that count as faults in the line of all runs."""


class Processes:
    """The launch processes of one command, by the names of their members."""

    def __init__(self, logs: Path, work: Path, view: GroupDisplay) -> None:
        self.logs, self.work, self.view = logs, work, view
        self.by_name: dict[str, Member] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.signals: list[int] = []
        self.forwarded = 0
        self._listener: events.Listener | None = None

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Take events and signals inside the block; afterwards, end what is left and close the display."""
        process.adopt_orphans()
        others = process.below()
        self._listener = events.Listener(self.work / "events")
        try:
            with process.on_stop(self._note):
                yield
        finally:
            process.end_tree(process.END_GRACE_S, others)
            self._listener.close()
            self._handle()
            self.view.close()
        for name in self.processes:
            self.complete(self.by_name[name])

    def start(
        self, member: Member, request: Request, *, join: bool = False, env: Mapping[str, str] | None = None
    ) -> None:
        """Start the launch of a member; with `join`, it follows the run instead if that still trains."""
        spec = self.work / f"{member.name}.json"
        address = str(self.work / "events")
        MemberSpec.of(request, cluster=member.name, address=address, parent=os.getpid(), join=join).write(
            spec
        )
        command = [sys.executable, "-m", "trainfleet.training.launch.clusters.member", str(spec)]
        self.by_name[member.name] = member
        with self.log(member) as log:
            # A session of its own: Ctrl-C in the terminal reaches only this process, which passes it on.
            self.processes[member.name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=env
            )

    def poll(self) -> list[Member]:
        """Show what the launches reported and pass signals on; returns the members whose launches run."""
        running = [self.by_name[name] for name, child in self.processes.items() if child.poll() is None]
        self._handle()
        self._on_signals()
        return running

    def complete(self, member: Member) -> None:
        """Complete what is known of a member whose process has ended, which may have reported nothing."""
        if not member.ended:
            code = self.processes[member.name].returncode
            member.status = "interrupted" if self.signals else "failed"
            member.summary = f"its launch ended with exit code {code}; {self.log_file(member)}"

    @contextlib.contextmanager
    def log(self, member: Member) -> Iterator[IO[bytes]]:
        """The log of a member, open at its end."""
        file = self.log_file(member)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as log:
            yield log

    def log_file(self, member: Member) -> Path:
        """Where the output of a member's launch is."""
        return self.logs / f"{member.name}.log"

    def _handle(self) -> None:
        for event in self._listener.drain() if self._listener is not None else ():
            member = self.by_name.get(str(event.pop("cluster", "")))
            if member is None:
                continue
            match event["kind"]:
                case "step" | "note" if member.status == "starting":
                    member.status = "running"
                case "interval":
                    member.status, member.row = "running", event["row"]
                case "attempt_failed" | "moved":
                    member.faults += 1
                case "event" if event["what"] in FAULTS:
                    member.faults += 1
                case kind if kind == ENDED:
                    member.status = event["status"]
                    member.document = event.get("document", {})
                    member.summary, member.problems = event.get("summary", ""), event.get("problems", [])
                    self.show(member, {"kind": "note", "text": member.summary or member.status})
                    continue
            self.show(member, event)

    def show(self, member: Member, event: Mapping[str, Any]) -> None:
        """Show an event. Output that can no longer be written counts as a closed terminal."""
        try:
            self.view.handle(member, event)
        except OSError:  # the reader of a pipe has ended, or a disk is full
            process.leave_output()
            self.view = QuietGroup()
            self.signals.append(signal.SIGHUP)

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
        left = [each for name, each in self.by_name.items() if self.processes[name].poll() is None]
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
