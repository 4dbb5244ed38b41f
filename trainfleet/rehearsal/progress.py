"""Live progress of a rehearsal on stderr: the running step, and a line per finished step."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from trainfleet.rehearsal.report import Step
from trainfleet.rehearsal.steps.session import Show


@contextlib.contextmanager
def shown() -> Iterator[Show]:
    """Show progress inside the block. Without a terminal, only print one line per finished step."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from trainfleet.console import err

    console = err()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed:.0f} resources"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, redirect_stdout=False
    ) as bars:
        task = bars.add_task("starting", total=None)

        def begin(step: Step) -> None:
            bars.reset(task, description=step.title, total=None)

        def end(step: Step) -> None:
            if step.ran:
                console.print(
                    f"{'[green]✓[/]' if step.ok else '[red]✗[/]'} {step.title} [dim]{step.seconds:.1f} s[/]",
                    highlight=False,
                )

        yield Show(begin=begin, resource=lambda _, count: bars.advance(task, count), end=end)
    sys.stderr.flush()
