"""`trainfleet evaluate`: measure a checkpoint on a split. torch is imported when there is something to
compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.launch_job import (
    LaunchArguments,
    detached_lines,
    launch_job,
    require_no_launch_options,
)
from trainfleet.training.cli.launch_options import OF_JOBS, Code, LaunchedOn, Stacks, with_launcher_options
from trainfleet.training.cli.options import (
    InferencePrecision,
    JsonAtEnd,
    ModelSource,
    Storage,
    Which,
    Workers,
)

if TYPE_CHECKING:
    from trainfleet.training.evaluate import Evaluation

evaluate = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)


SplitName = Annotated[str, typer.Option("--split", metavar="SPLIT", help="train, validation or test.")]
Samples = Annotated[
    int | None,
    typer.Option(
        "--samples", metavar="N", min=1, help="Maximum number, evenly spread; by default all samples."
    ),
]
Rows = Annotated[
    str | None,
    typer.Option(
        "--rows",
        metavar="INPUT",
        help="Measure on the rows of these files, with their targets, instead of a split.",
    ),
]


OWN = (
    *("source", "split", "which", "workers", "samples", "rows", "precision"),
    *("on", "stack", "storage", "code", "as_json"),
)
"""The parameters of the command itself; the others are options of launchers."""


@evaluate.command(epilog=EXIT_CODES)
@with_launcher_options(OF_JOBS)
def evaluate_command(  # noqa: PLR0917 - Typer passes options by name
    ctx: typer.Context,
    source: ModelSource,
    split: SplitName = "test",
    which: Which = "best",
    workers: Workers = 1,
    samples: Samples = None,
    rows: Rows = None,
    precision: InferencePrecision = None,
    on: LaunchedOn = None,
    stack: Stacks = None,
    storage: Storage = None,
    code: Code = None,
    as_json: JsonAtEnd = False,
) -> None:
    """Measure a checkpoint on a split: each sample once. Metrics are exact for any number of processes.

    With --rows the model may also be a published folder, and needs none of its training data; a row is as for
    predict, with [dim]label[/] for an image or [dim]text[/] for audio. Otherwise,
    the result is stored in RUN/evaluations/SPLIT-STEP.json; with --precision in SPLIT-STEP-PRECISION.json.

    With --on, the processes run where [dim]trainfleet launch[/] would train, as a run of their own, with its
    options.

    [bold]Examples[/]

    trainfleet evaluate runs/lm-small

    trainfleet evaluate runs/lm-small --split validation --which step-100 --workers 2

    trainfleet evaluate runs/lm-small/checkpoints/step-00000200 --precision bf16 --json

    trainfleet evaluate models/digits --rows new.parquet

    trainfleet evaluate s3://my-bucket/runs/lm-1b --on kuberay --stack outputs.json --workers 8
    """
    from dataclasses import asdict
    from functools import partial

    from trainfleet.console import print_json
    from trainfleet.training.evaluate import evaluate as measure
    from trainfleet.training.runtime.counted_progress import CountedProgress

    if on is not None:
        _refuse_rows(rows, on)
        where = LaunchArguments(on, workers, tuple(stack or ()), storage, code, json=as_json)
        job = {"source": source, "split": split, "which": which, "samples": samples, "precision": precision}
        _launch(ctx, where, job)
        return
    require_no_launch_options(ctx, [each for each in OWN if each not in ("stack", "storage", "code")])
    if rows is not None:
        _evaluate_rows(ctx, source, rows, which, precision, as_json=as_json)
        return
    measured = partial(measure, source, split, which, workers=workers)
    with CountedProgress(f"evaluating on {split}", quiet=as_json) as progress:
        found = measured(samples=samples, precision=precision, progress=progress)
    if as_json:
        print_json(asdict(found) | {"file": found.file})
    else:
        _show(found)


def _refuse_rows(rows: Any, on: str) -> None:
    from trainfleet.errors import InputError, Problem

    if rows is not None:
        what = f"does nothing with --on {on}: one process reads all rows"
        raise InputError("options that --on does not have", [Problem("--rows", what, "leave out --on")])


def _launch(ctx: typer.Context, where: LaunchArguments, job: dict[str, Any]) -> None:
    from trainfleet.console import out, print_json
    from trainfleet.training.evaluate import Evaluation, require_split

    require_split(job["split"])
    outcome, result = launch_job(ctx, where, "evaluate", job, own=OWN, urls={"MODEL": job["source"]})
    if (lines := detached_lines(outcome)) is not None:
        if where.json:
            print_json(outcome.document)
        for line in lines if not where.json else ():
            out().print(line, soft_wrap=True, markup=False)
        return
    found = result["evaluation"]
    if where.json:
        print_json(found)
    else:
        _show(Evaluation(**{key: value for key, value in found.items() if key != "file"}))


def _evaluate_rows(
    ctx: typer.Context, source: str, rows: str, which: str, precision: Any, *, as_json: bool
) -> None:
    from trainfleet.console import out, print_json
    from trainfleet.errors import InputError, Problem
    from trainfleet.training.inference.evaluate_rows import evaluate_rows
    from trainfleet.training.runtime.counted_progress import CountedProgress

    given = [
        name
        for name in ("split", "workers", "samples")
        if (came := ctx.get_parameter_source(name)) is not None and not came.name.startswith("DEFAULT")
    ]
    if given:
        what = "does nothing with --rows, which reads all rows in this process"
        raise InputError(
            "options that --rows does not have",
            [Problem(f"--{name}", what, "leave it out") for name in given],
        )
    with CountedProgress("evaluating, blocks", quiet=as_json) as progress:
        found = evaluate_rows(source, rows, which, precision=precision, progress=progress)
    if as_json:
        print_json(found)
        return
    out().print(f"step {found['step']}, {found['rows']:,} rows")
    _show_metrics(found["metrics"])


def _show(found: Evaluation) -> None:
    from trainfleet.console import out

    share = "all" if found.samples == found.of else f"{found.samples:,} of"
    console = out()
    console.print(f"step {found.step}, {share} {found.of:,} samples of {found.split}")
    _show_metrics(found.metrics)
    console.print(f"stored in {found.file}", soft_wrap=True, markup=False)


def _show_metrics(metrics: Mapping[str, float]) -> None:
    from rich.table import Table

    from trainfleet.console import out

    table = Table()
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.6g}")
    out().print(table)
