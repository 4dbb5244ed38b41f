"""`trainfleet publish`: export a checkpoint that passes its gates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet import completion
from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.options import JsonAtEnd, Source, Which, Workers

if TYPE_CHECKING:
    from trainfleet.training.publish.export import Published
    from trainfleet.training.publish.gates import GateResult

publish = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)


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
            help="Use the gates of this recipe; by default those of the run's own.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    workers: Workers = 1,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an earlier publication.")] = False,
    as_json: JsonAtEnd = False,
) -> None:
    """Publish a checkpoint that passes its gates: safetensors, model card and provenance, verified by
    loading.

    The recipe defines the gates: [dim]publish: {gates: {test/loss: {max: 2.0}}}[/]. A run that fails one
    writes nothing and exits with 1.

    [bold]Examples[/]

    trainfleet publish runs/lm-small

    trainfleet publish runs/lm-small --to models/lm-small --workers 2

    trainfleet publish runs/lm-small --recipe stricter.yaml --replace --json
    """
    from trainfleet.console import print_json
    from trainfleet.training.publish.export import publish as export
    from trainfleet.training.publish.gates import GateError
    from trainfleet.training.recipe.load import load_recipe
    from trainfleet.training.runtime.counted_progress import CountedProgress

    gates = load_recipe(recipe) if recipe is not None else None
    try:
        with CountedProgress("publishing", quiet=as_json) as progress:
            done = export(
                source,
                to,
                which,
                recipe=gates,
                workers=workers,
                replace=replace,
                progress=lambda _, part, total: progress(part, total),
            )
    except GateError as error:
        if as_json:
            print_json({"published": None, "gates": _as_json(error.gates)})
        else:
            _show_gates(error.gates)
        raise
    _report(done, as_json=as_json)


def _report(done: Published, *, as_json: bool) -> None:
    from trainfleet.console import out, print_json

    if as_json:
        document = {
            "published": str(done.folder),
            "checkpoint": done.checkpoint,
            "step": done.step,
            "gates": _as_json(done.gates),
            "metrics": done.metrics,
            "export": done.check,
            "files": sorted(path.name for path in done.folder.iterdir()),
        }
        print_json(document)
        return
    _show_gates(done.gates)
    same = "equal weights" if done.check["weights"] == "equal" else "weights in another form"
    out().print(f"loaded back: {same}, the same loss on {done.check['samples']} samples", soft_wrap=True)
    out().print(f"published step {done.step} in {done.folder}", soft_wrap=True, markup=False)


def _as_json(gates: Sequence[GateResult]) -> list[dict[str, Any]]:
    return [
        {"metric": each.metric, "min": each.min, "max": each.max, "value": each.value, "passed": each.passed}
        for each in gates
    ]


def _show_gates(gates: Sequence[GateResult]) -> None:
    from rich.table import Table

    from trainfleet.console import out

    table = Table()
    for name in ("gate", "must be", "is", ""):
        table.add_column(name)
    for each in gates:
        value = "-" if each.value is None else f"{each.value:.6g}"
        passed = "[green]passed[/]" if each.passed else "[red]failed[/]"
        table.add_row(each.metric, each.requirement, value, passed)
    out().print(table)
