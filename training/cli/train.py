"""`trainfleet train`: train a recipe on this machine."""

from __future__ import annotations

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.options import (
    AllowChange,
    Fresh,
    JsonAtEnd,
    Overrides,
    RecipeName,
    RunName,
    Set,
    Storage,
)

train = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)


@train.command(epilog=EXIT_CODES)
def train_command(  # noqa: PLR0917 - Typer passes options by name
    recipe: RecipeName,
    overrides: Overrides = None,
    run: RunName = None,
    storage: Storage = None,
    fresh: Fresh = False,
    allow: AllowChange = None,
    settings: Set = None,
    as_json: JsonAtEnd = False,
) -> None:
    """Train a recipe on this machine with Ray; the same as `trainfleet launch RECIPE --on local`.

    Rerun the same command to resume from the newest checkpoint. Ctrl-C saves one first. One word of the
    recipe sets the parallelism: strategy=ddp, fsdp or hsdp; a run may change it. With a URL as storage,
    checkpoints are uploaded while the run continues, and any machine can resume it.

    [bold]Examples[/]

    trainfleet train lm-small

    trainfleet train recipes/lm-small.yaml strategy=fsdp scaling.workers=2

    trainfleet train lm-small steps=400 optimizer.lr=1e-3 --run try-1

    trainfleet train lm-small controllers.rate.kind=plateau --run steered

    trainfleet train lm-small --storage s3://my-bucket/runs

    trainfleet train lm-tiny --fresh --json
    """
    from trainfleet.training.cli.outcome import start_and_report
    from trainfleet.training.launch.request import Request

    request = Request(
        recipe,
        overrides=(*(overrides or ()), *(settings or ())),
        run=run,
        storage=storage,
        fresh=fresh,
        json=as_json,
        allow_changes=tuple(allow or ()),
    )
    start_and_report(request)
