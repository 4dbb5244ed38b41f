"""Shows a run's progress: one line per log interval, and a progress bar on a terminal.

A line has the same values as a row of metrics.jsonl, formatted for people.
"""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

NOTABLE = (
    "quarantined",
    "changed_rows",
    "network",
    "compiled",
    "not_compiled",
    "hung",
    "resumed",
    "validation",
    "fallback",
    "decision",
    "skip",
    "roll_back",
    "preemption",
    "budget",
    "quarantine",
    "retry",
    "warning",
    "save_failed",
    "stopped",
    "finished",
)
"""Events worth a line; a checkpoint every few steps is not."""


def duration(seconds: float) -> str:
    """Seconds as people read them: 8s, 3m20s, 2h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def number(value: float) -> str:
    """A number as people read it: 1.2M, 34.5k, 2.351, 3e-4."""
    if value == 0:
        return "0"
    size = abs(value)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            scale = 1e3 if suffix == "k" else limit
            return f"{value / scale:.3g}{suffix}"
    if size < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.4g}"


class Display(Protocol):
    """What every way of showing a run can do."""

    def handle(self, event: Mapping[str, Any]) -> None: ...

    def ask(self, answers: Mapping[str, str], interrupted: Callable[[], bool]) -> str: ...

    def close(self) -> None: ...


def ask_on_terminal(answers: Mapping[str, str], interrupted: Callable[[], bool]) -> str:
    """Ask the person at the terminal, on stderr.

    Args:
        answers: what each answer means; an empty one is Enter.
        interrupted: whether to stop asking, because of another signal.

    Returns:
        The answer; the first one without a terminal, at its end, or when interrupted.
    """
    first = next(iter(answers))
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return first
    choice = ", ".join(f"{answer or 'Enter'}: {meaning}" for answer, meaning in answers.items())
    while True:
        sys.stderr.write(f"\n{choice} ? ")
        sys.stderr.flush()
        while not select.select([sys.stdin], [], [], 0.1)[0]:
            if interrupted():
                return first
        line = sys.stdin.readline()
        if not line:
            return first
        if (answer := line.strip().lower()) in answers:
            return answer


@contextlib.contextmanager
def hidden(progress: Progress) -> Iterator[None]:
    """Take progress bars off the terminal, for a question."""
    progress.stop()
    try:
        yield
    finally:
        progress.start()


class Quiet:
    """Shows nothing; for `--json`."""

    def handle(self, event: Mapping[str, Any]) -> None: ...

    def ask(self, answers: Mapping[str, str], interrupted: Callable[[], bool]) -> str:
        return ask_on_terminal(answers, interrupted)

    def close(self) -> None: ...


class Lines:
    """Plain lines, for a pipe or a log."""

    def handle(self, event: Mapping[str, Any]) -> None:
        text = describe(event)
        if text:
            self.show(text, event)

    def show(self, text: str, event: Mapping[str, Any]) -> None:  # noqa: ARG002 - siblings use it
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def ask(self, answers: Mapping[str, str], interrupted: Callable[[], bool]) -> str:
        return ask_on_terminal(answers, interrupted)

    def close(self) -> None: ...


class Bar(Lines):
    """A Rich progress bar below the lines, for a terminal."""

    def __init__(self) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._progress: Progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]left[/]"),
            TimeRemainingColumn(),
            transient=True,
        )
        self._task: TaskID = self._progress.add_task("starting", total=None)
        self._progress.start()

    def handle(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "step":
            self._progress.update(
                self._task, description="training", completed=event["step"], total=event["total"]
            )
        elif event["kind"] == "note":
            self._progress.update(self._task, description=str(event["text"]))
        super().handle(event)

    def show(self, text: str, event: Mapping[str, Any]) -> None:
        from rich.markup import escape

        style = {"interval": "", "event": "cyan", "warning": "yellow"}.get(event["kind"], "dim")
        self._progress.console.print(
            f"[{style}]{escape(text)}[/]" if style else escape(text), highlight=False, soft_wrap=True
        )

    def ask(self, answers: Mapping[str, str], interrupted: Callable[[], bool]) -> str:
        with hidden(self._progress):
            return super().ask(answers, interrupted)

    def close(self) -> None:
        self._progress.stop()


def display(json: bool) -> Display:
    """The right way of showing for where stdout goes."""
    if json:
        return Quiet()
    return Bar() if sys.stdout.isatty() else Lines()


def describe(event: Mapping[str, Any]) -> str:
    """The line for an event, or nothing for one that is not worth a line."""
    if event["kind"] == "interval":
        return dense_line(event["row"])
    if event["kind"] == "event" and event["what"] in NOTABLE:
        return f"{event['what']}: {event['text']}"
    if event["kind"] in ("warning", "note", "moved"):
        return str(event["text"])
    return ""


def dense_line(row: Mapping[str, Any]) -> str:
    """One row of metrics.jsonl as a line: step, loss, lr, tokens/s, MFU where known, share of the time spent
    waiting for data, time left.
    """
    nats = (
        f" ({row['nats_per_byte']:.4f} nats/byte)"
        if row.get("nats_per_byte") not in (None, row["loss"])
        else ""
    )
    steps = str(row["steps"])
    parts = [
        f"step {row['step']:>{len(steps)}}/{steps}",
        f"loss {row['loss']:.4f}{nats}",
        f"lr {row['lr']:.2e}",
        _rate(row),
        *([f"mfu {row['mfu']:.1%}"] if row.get("mfu") is not None else []),
        f"wait {row['data_wait']:.1%}",
        *([f"${row['usd']:,.2f}"] if row.get("usd") is not None else []),
        f"left {duration(row['eta_seconds'])}",
    ]
    return "  ".join(parts)


def _rate(row: Mapping[str, Any]) -> str:
    """Tokens per second; samples where a sample is one token."""
    tokens, samples = row["tokens_per_second"], row.get("samples_per_second")
    return f"{number(tokens)} {'samples' if tokens == samples else 'tok'}/s"
