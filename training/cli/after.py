"""`trainfleet evaluate` and `trainfleet publish`: what is done with a run once it is trained.

Answers `--help` in half a second: torch is imported when there is something to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.console import EXIT_CODES

if TYPE_CHECKING:
    from trainfleet.training.evaluate import Evaluation
    from trainfleet.training.publish.gates import Judged

evaluate = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
publish = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)

Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN|CHECKPOINT", help="A run's folder or URL, or one checkpoint's.", show_default=False
    ),
]
Which = Annotated[
    str, typer.Option("--which", metavar="WHICH", help="Of a run's checkpoints: best, newest or step-N.")
]
Json = Annotated[bool, typer.Option("--json", help="No progress; one JSON document on stdout at the end.")]
Workers = Annotated[
    int,
    typer.Option(
        "--workers", metavar="N", min=1, max=512, help="Processes on this machine that share the samples."
    ),
]


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
        typer.Option("--samples", metavar="N", min=1, help="At most so many, evenly spread; by default all."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a checkpoint on a split: each sample once, shared out to processes, the figures as exact as in
    one.

    They are kept in RUN/evaluations/SPLIT-STEP.json.

    [bold]Examples[/]

    trainfleet evaluate runs/lm-small

    trainfleet evaluate runs/lm-small --split validation --which step-100 --workers 2

    trainfleet evaluate runs/lm-small/checkpoints/step-00000200 --json
    """
    from dataclasses import asdict

    from trainfleet.console import print_json
    from trainfleet.training.evaluate import evaluate as measure
    from trainfleet.training.runtime.counted_progress import Headway

    with Headway(f"evaluating on {split}", quiet=as_json) as headway:
        found = measure(source, split, which, workers=workers, samples=samples, progress=headway)
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
    console.print(f"kept in {found.file}", soft_wrap=True, markup=False)


@publish.command(epilog=EXIT_CODES)
def publish_command(  # noqa: PLR0917 - Typer passes options by name
    source: Source,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="Where to write it; by default RUN/published."),
    ] = None,
    which: Which = "best",
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="RECIPE",
            help="Judge by this recipe's gates; by default those the run was started with.",
        ),
    ] = None,
    workers: Workers = 1,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put it in the place of an earlier publication.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Publish a checkpoint that passes its recipe's gates: safetensors, model card and provenance, loaded
    back and compared.

    The gates stand in the recipe: [dim]publish: {gates: {test/loss: {max: 2.0}}}[/]. A run that fails one
    leaves nothing and exits with 1.

    [bold]Examples[/]

    trainfleet publish runs/lm-small

    trainfleet publish runs/lm-small --to models/lm-small --workers 2

    trainfleet publish runs/lm-small --recipe stricter.yaml --replace --json
    """
    from trainfleet.console import out, print_json
    from trainfleet.training.publish.export import publish as write
    from trainfleet.training.publish.gates import GateError
    from trainfleet.training.recipe.load import load_recipe
    from trainfleet.training.runtime.counted_progress import Headway

    judge = load_recipe(recipe) if recipe is not None else None
    try:
        with Headway("publishing", quiet=as_json) as headway:
            done = write(
                source,
                to,
                which,
                recipe=judge,
                workers=workers,
                replace=replace,
                progress=lambda _, part, total: headway(part, total),
            )
    except GateError as error:
        if as_json:
            print_json({"published": None, "gates": _judged(error.gates)})
        else:
            _show_gates(error.gates)
        raise
    if as_json:
        print_json(
            {
                "published": str(done.folder),
                "checkpoint": done.checkpoint,
                "step": done.step,
                "gates": _judged(done.gates),
                "metrics": done.metrics,
                "export": done.check,
                "files": sorted(path.name for path in done.folder.iterdir()),
            }
        )
        return
    _show_gates(done.gates)
    same = "equal weights" if done.check["weights"] == "equal" else "weights in another form"
    out().print(f"loaded back: {same}, the same loss on {done.check['samples']} samples", soft_wrap=True)
    out().print(f"published step {done.step} in {done.folder}", soft_wrap=True, markup=False)


def _judged(gates: Sequence[Judged]) -> list[dict[str, Any]]:
    return [
        {"metric": each.metric, "min": each.min, "max": each.max, "value": each.value, "passed": each.passed}
        for each in gates
    ]


def _show_gates(gates: Sequence[Judged]) -> None:
    from rich.table import Table

    from trainfleet.console import out

    table = Table()
    for name in ("gate", "must be", "is", ""):
        table.add_column(name)
    for each in gates:
        value = "-" if each.value is None else f"{each.value:.6g}"
        table.add_row(
            each.metric, each.wanted, value, "[green]passed[/]" if each.passed else "[red]failed[/]"
        )
    out().print(table)
