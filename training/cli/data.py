"""`trainfleet data`: prepare a recipe's data ahead of a run, say what it is, and put it where other machines
can read it.

Answers `--help` in half a second: nothing heavy is imported before there is something to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.errors import InputError, Problem

data = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)


@data.command(epilog=EXIT_CODES)
def data_command(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A YAML file, or the name of a recipe that comes with Trainfleet.", show_default=False
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe.", show_default=False),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="Also copy it there: an object store's URL, or a folder."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="No progress; one JSON document on stdout at the end.")
    ] = False,
) -> None:
    """Prepare a recipe's data: read, tokenised, split and packed into blocks, once per machine; a run would
    do the same at its start.

    Typed again after a kill it goes on; typed again after it is done it only says what there is. With --to
    the blocks can be read
    by any machine: name that URL as the recipe's source, and each machine fetches the blocks it needs into a
    cache of limited size.

    [bold]Examples[/]

    trainfleet data lm-small

    trainfleet data recipes/lm-124m.yaml workload.data.source=/data/text --to s3://my-bucket/text

    trainfleet data lm-small --json
    """
    import os

    from trainfleet.console import err, out, print_json
    from trainfleet.training.data.prepare import open_prepared
    from trainfleet.training.data.upload import upload
    from trainfleet.training.recipe.load import load_recipe
    from trainfleet.training.trainer.context import default_cache
    from trainfleet.training.workloads import make_workload

    read = load_recipe(recipe, overrides or (), os.environ)
    tells = getattr(make_workload(read, default_cache()), "facts", None)
    facts: dict[str, Any] = tells().get("data", {}) if tells is not None else {}
    if not facts:
        raise InputError(
            "there is nothing to prepare",
            [Problem(recipe, f"the workload `{read.workload.name}` keeps no blocks", "")],
        )
    prepared = open_prepared(str(facts["manifest"]).rpartition("/")[0])
    if to is not None:
        with err().status("") as status:
            prepared = upload(
                prepared,
                to if "://" in to else str(Path(to).absolute()),
                lambda what, done, total: status.update(f"{what} {done}/{total}"),
            )
    manifest = prepared.manifest
    document = {
        **prepared.facts(),
        "where": prepared.where,
        "bytes": manifest.bytes(),
        "rows_per_block": manifest.rows_per_block,
    }
    if as_json:
        print_json(document)
        return
    console = out()
    for split, blocks in manifest.splits.items():
        console.print(
            f"{split}: {manifest.rows(split):,} samples in {len(blocks)} block{'s' if len(blocks) != 1 else ''}",
            highlight=False,
        )
    console.print(
        f"{manifest.bytes() / 2**20:,.1f} MiB, digest {manifest.digest()[:16]}, {len(manifest.sources):,} source files",
        highlight=False,
    )
    left_out = document["left_out"]
    if left_out["count"]:
        console.print(f"left out: {left_out['count']}", highlight=False)
        for each in left_out["named"]:
            console.print(f"  {each['where']}: {each['what']}", markup=False, highlight=False)
    console.print(f"kept in {prepared.where}", soft_wrap=True, markup=False, highlight=False)
