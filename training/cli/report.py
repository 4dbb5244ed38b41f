"""`trainfleet report`: a run's report, or a comparison of several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainfleet import completion
from trainfleet.console import EXIT_CODES

report = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)


@report.command(epilog=EXIT_CODES)
def report_command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Runs: folders, such as runs/lm-small, or URLs.",
            show_default=False,
            autocompletion=completion.run_folders,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it. By default RUN/report.html, NAME.html for a URL, or comparison.html.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Also print the figures as JSON.")] = False,
) -> None:
    """Write a run's report, or compare several runs: one HTML file with curves, figures and events.

    The file needs no network. Works during a run, and after it was killed.

    [bold]Examples[/]

    trainfleet report runs/lm-small

    trainfleet report runs/lm-small --output /tmp/lm-small.html --json

    trainfleet report runs/try-1 runs/try-2 runs/try-3 --output tries.html

    trainfleet report s3://my-bucket/runs/lm-small
    """
    from trainfleet.console import out, print_json
    from trainfleet.training.report import differences, write_comparison, write_report
    from trainfleet.training.stores import is_remote

    if len(runs) == 1:
        place = runs[0].removeprefix("file://")
        default = (
            f"{place.rstrip('/').rpartition('/')[2]}.html" if is_remote(place) else f"{place}/report.html"
        )
        target = output or Path(default)
        document = write_report(place, target).figures()
    else:
        target = output or Path("comparison.html")
        summaries = write_comparison(runs, target)
        document = {
            "runs": [summary.figures() for summary in summaries],
            "recipe_differences": differences(summaries),
        }
    if as_json:
        print_json({"report": str(target), **document})
    else:
        out().print(str(target), soft_wrap=True)
