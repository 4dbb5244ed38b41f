"""`trainfleet data`: prepare a recipe's data before a run, describe it, and upload it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.errors import InputError, Problem
from trainfleet.training.cli.options import JsonAtEnd, Overrides, RecipeName, Set

if TYPE_CHECKING:
    from trainfleet.training.data.prepared import Prepared

data = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)


@data.command(epilog=EXIT_CODES)
def data_command(
    recipe: RecipeName,
    overrides: Overrides = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="Where it goes: an object store's URL, or a folder."),
    ] = None,
    settings: Set = None,
    as_json: JsonAtEnd = False,
) -> None:
    """Prepare a recipe's data: read, tokenize, split and pack it into blocks, once per machine.

    A run does the same at its start. Rerun to resume; once everything is prepared, the command only describes
    it. With --to, any machine can read the blocks: use that URL as the recipe's source, and each machine
    fetches the blocks that it needs into a cache of limited size. Such a run needs no raw data. With
    RAY_ADDRESS, the tasks of that Ray cluster read and transform raw files of an object store, and write the
    blocks to the URL of --to, or to workload.data.store.

    [bold]Examples[/]

    trainfleet data lm-small

    trainfleet data recipes/lm-124m.yaml workload.data.source=/data/text --to s3://my-bucket/text

    trainfleet train recipes/lm-124m.yaml workload.data.source=s3://my-bucket/text

    trainfleet data lm-small --json
    """
    import os
    from contextlib import nullcontext

    from trainfleet.console import print_json
    from trainfleet.training.data.in_store import writing_to
    from trainfleet.training.data.prepared import open_prepared
    from trainfleet.training.recipe.load import load_recipe
    from trainfleet.training.runtime.ray_cluster import connect
    from trainfleet.training.trainer.context import default_cache
    from trainfleet.training.workloads import make_workload

    loaded = load_recipe(recipe, (*(overrides or ()), *(settings or ())), os.environ)
    ray = connect(loaded.scaling, os.environ) if os.environ.get("RAY_ADDRESS") else nullcontext()
    with ray, writing_to(to) as target:
        facts = make_workload(loaded, default_cache()).data_info().get("data", {})
    if not facts:
        raise InputError(
            "there is nothing to prepare",
            [Problem(recipe, f"the workload `{loaded.workload.name}` stores no blocks", "")],
        )
    prepared = open_prepared(str(facts["manifest"]).rpartition("/")[0])
    prepared = _uploaded(prepared, target)
    document = {
        **prepared.data_info(),
        "where": prepared.where,
        "bytes": prepared.manifest.bytes(),
        "rows_per_block": prepared.manifest.rows_per_block,
    }
    if as_json:
        print_json(document)
    else:
        _show(prepared, document)


def _uploaded(prepared: Prepared, to: str | None) -> Prepared:
    """The data at the target, which the tasks of a cluster have already written."""
    if to is None or prepared.where == to:
        return prepared
    from trainfleet.console import err
    from trainfleet.training.data.upload import upload

    with err().status("") as status:
        return upload(prepared, to, lambda what, done, total: status.update(f"{what} {done}/{total}"))


def _show(prepared: Prepared, document: dict[str, Any]) -> None:
    from trainfleet.console import out

    console, manifest = out(), prepared.manifest
    for split, blocks in manifest.splits.items():
        plural = "s" if len(blocks) != 1 else ""
        line = f"{split}: {manifest.rows(split):,} samples in {len(blocks)} block{plural}"
        console.print(line, highlight=False)
    size = f"{manifest.bytes() / 2**20:,.1f} MiB, digest {manifest.digest()[:16]}"
    console.print(f"{size}, {manifest.source_files:,} source files", highlight=False)
    for title, rows in (("left out", document["left_out"]), ("used in part", document.get("changed", {}))):
        if rows.get("count"):
            console.print(f"{title}: {rows['count']}", highlight=False)
            for each in rows["named"]:
                console.print(f"  {each['where']}: {each['what']}", markup=False, highlight=False)
    console.print(f"stored in {prepared.where}", soft_wrap=True, markup=False, highlight=False)
