"""`trainfleet evaluate`: measure a checkpoint on a split. torch is imported when there is something to
compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.options import InferencePrecision, JsonAtEnd, Source, Which, Workers

if TYPE_CHECKING:
    from trainfleet.training.evaluate import Evaluation

evaluate = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)


@evaluate.command(epilog=EXIT_CODES)
def evaluate_command(  # noqa: PLR0917 - Typer passes options by name
    source: Source,
    split: Annotated[
        str, typer.Option("--split", metavar="SPLIT", help="train, validation or test.")
    ] = "test",
    which: Which = "best",
    workers: Workers = 1,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", metavar="N", min=1, help="Maximum number, evenly spread; by default all samples."
        ),
    ] = None,
    precision: InferencePrecision = None,
    as_json: JsonAtEnd = False,
) -> None:
    """Measure a checkpoint on a split: each sample once. Metrics are exact for any number of processes.

    The result is stored in RUN/evaluations/SPLIT-STEP.json; with --precision in SPLIT-STEP-PRECISION.json.

    [bold]Examples[/]

    trainfleet evaluate runs/lm-small

    trainfleet evaluate runs/lm-small --split validation --which step-100 --workers 2

    trainfleet evaluate runs/lm-small/checkpoints/step-00000200 --precision bf16 --json
    """
    from dataclasses import asdict

    from trainfleet.console import print_json
    from trainfleet.training.evaluate import evaluate as measure
    from trainfleet.training.runtime.counted_progress import CountedProgress

    with CountedProgress(f"evaluating on {split}", quiet=as_json) as progress:
        found = measure(
            source,
            split,
            which,
            workers=workers,
            samples=samples,
            precision=precision,
            progress=progress,
        )
    if as_json:
        print_json(asdict(found) | {"file": found.file})
    else:
        _show(found)


def _show(found: Evaluation) -> None:
    from rich.table import Table

    from trainfleet.console import out

    share = "all" if found.samples == found.of else f"{found.samples:,} of"
    console = out()
    console.print(f"step {found.step}, {share} {found.of:,} samples of {found.split}")
    table = Table()
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in found.metrics.items():
        table.add_row(name, f"{value:.6g}")
    console.print(table)
    console.print(f"stored in {found.file}", soft_wrap=True, markup=False)
