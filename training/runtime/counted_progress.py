"""What a person sees of counted work (samples evaluated, rows predicted, trials tried): a bar in a terminal,
else now and then a line.

Used by evaluate, predict, publish and tune. It speaks on stderr, for their results go to stdout.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_EVERY_S = 5.0


class CountedProgress:
    """Shows how much of the work is done; a context manager that removes its bar. `quiet` prints nothing."""

    def __init__(self, what: str, quiet: bool = False) -> None:
        self.what, self.quiet = what, quiet
        self._reported_at = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> CountedProgress:
        if not self.quiet and sys.stderr.isatty():
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
            )

            from trainfleet.console import err

            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=err(), transient=True)
            self._bar.add_task(self.what, total=None)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Report that `done` of `total` items are done."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total)
        elif time.monotonic() - self._reported_at >= LINE_EVERY_S:
            self.say(f"{self.what}: {done}/{total}")

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the bar off the terminal, for a question."""
        from trainfleet.training.runtime.progress import hidden

        with hidden(self._bar) if self._bar is not None else contextlib.nullcontext():
            yield

    def say(self, text: str) -> None:
        """Print a line."""
        self._reported_at = time.monotonic()
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, markup=False, soft_wrap=True)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
