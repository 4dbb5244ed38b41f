"""Shows the runs of all clusters: their lines with the cluster's name, and a line for all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from trainfleet.training.launch.clusters.summary import Member
from trainfleet.training.runtime.progress import ask_on_terminal, describe, hidden, number


class GroupDisplay(Protocol):
    """What every way of showing several runs can do."""

    def handle(self, member: Member, event: Mapping[str, Any]) -> None: ...

    def warn(self, text: str) -> None: ...

    def ask(self, answers: Mapping[str, str], interrupted: Callable[[], bool]) -> str: ...

    def close(self) -> None: ...


class QuietGroup:
    """Shows nothing; for `--json`."""

    def handle(self, member: Member, event: Mapping[str, Any]) -> None: ...

    def warn(self, text: str) -> None: ...

    def ask(self, answers: Mapping[str, str], interrupted: Callable[[], bool]) -> str:
        return ask_on_terminal(answers, interrupted)

    def close(self) -> None: ...


class GroupLines(QuietGroup):
    """Plain lines. Once every run that trains has reported, a line sums them up."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._width = max((len(each.name) for each in members), default=0) + 2
        self._reported: set[str] = set()

    def handle(self, member: Member, event: Mapping[str, Any]) -> None:
        if text := describe(event):
            self._show(f"[{member.name}]", text)
        if event["kind"] != "interval":
            return
        self._reported.add(member.name)
        training = {each.name for each in self._members if each.status == "running" and each.row}
        if len(training) > 1 and training <= self._reported:
            self._reported.clear()
            self._show("all", sum_up(self._members))

    def warn(self, text: str) -> None:
        self._show("all", text)

    def _show(self, name: str, text: str) -> None:
        sys.stdout.write(f"{name:<{self._width}} {text}\n")
        sys.stdout.flush()


def sum_up(members: Sequence[Member]) -> str:
    """All runs in one line: their steps and losses, and their throughput, cost and faults together."""
    rows = [each.row for each in members if each.row]
    steps, losses = [row["step"] for row in rows], [row["loss"] for row in rows]
    running = [each.row for each in members if each.row and not each.ended]
    rates = [row["tokens_per_second"] for row in running if row.get("tokens_per_second") is not None]
    states = {
        word: sum(each.status in of for each in members)
        for word, of in (
            ("running", ("starting", "running")),
            ("finished", ("finished", "detached")),
            ("failed", ("failed", "interrupted", "stopped")),
        )
    }
    spent = [row["usd"] for row in rows if row.get("usd") is not None]
    faults = sum(each.faults for each in members)
    parts = [
        f"steps {_span(min(steps), max(steps), '{:.0f}')}",
        f"loss {_span(min(losses), max(losses), '{:.4f}')}",
        *([f"{number(sum(rates))} tok/s"] if rates else []),
        *([f"${sum(spent):,.2f}"] if spent else []),
        *([f"{faults} fault{'s' if faults > 1 else ''}"] if faults else []),
        ", ".join(f"{count} {word}" for word, count in states.items() if count),
    ]
    return "  ".join(parts)


def _span(low: float, high: float, form: str) -> str:
    return form.format(low) if low == high else f"{form.format(low)} to {form.format(high)}"


class GroupBars(GroupLines):
    """A progress bar for each cluster below the lines, for a terminal."""

    def __init__(self, members: Sequence[Member]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        super().__init__(members)
        columns = (
            TextColumn("{task.fields[cluster]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, TextColumn("{task.description}"), transient=True)
        self._tasks = {
            each.name: self._progress.add_task("starting", total=None, cluster=each.name) for each in members
        }
        self._progress.start()

    def handle(self, member: Member, event: Mapping[str, Any]) -> None:
        task = self._tasks[member.name]
        if event["kind"] == "step":
            self._progress.update(task, description="training", completed=event["step"], total=event["total"])
        elif event["kind"] == "note":
            self._progress.update(task, description=str(event["text"]))
        elif member.ended:
            self._progress.update(task, description=member.status)
        super().handle(member, event)

    def ask(self, answers: Mapping[str, str], interrupted: Callable[[], bool]) -> str:
        with hidden(self._progress):
            return super().ask(answers, interrupted)

    def close(self) -> None:
        self._progress.stop()

    def _show(self, name: str, text: str) -> None:
        from rich.markup import escape

        line = escape(f"{name:<{self._width}} {text}")
        self._progress.console.print(line, highlight=False, soft_wrap=True)


def group_display(json: bool, members: Sequence[Member]) -> GroupDisplay:
    """The right way of showing for where stdout goes."""
    if json:
        return QuietGroup()
    return GroupBars(members) if sys.stdout.isatty() else GroupLines(members)
