"""`trainfleet tune`: tune hyperparameters with Ray Tune."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.options import JsonAtEnd, Overrides, RecipeName, RunName, Set

if TYPE_CHECKING:
    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.tune.search import Search

SearchStorage = Annotated[
    str | None,
    typer.Option("--storage", metavar="DIR", help="Where to store it, in DIR/NAME-tune; by default runs/."),
]
FreshSearch = Annotated[
    bool, typer.Option("--fresh", help="Start over. The previous search is backed up, never deleted.")
]

tune = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)


@tune.command(epilog=EXIT_CODES)
def tune_command(  # noqa: PLR0917 - Typer passes options by name
    recipe: RecipeName,
    overrides: Overrides = None,
    run: RunName = None,
    storage: SearchStorage = None,
    fresh: FreshSearch = False,
    settings: Set = None,
    as_json: JsonAtEnd = False,
) -> None:
    """Tune hyperparameters with Ray Tune, and write the best recipe to best.yaml. Rerun to resume.

    The recipe defines the space: [dim]tune: {trials: 12, space: {optimizer.lr: {log_uniform: [1e-4,
    1e-2]}}}[/]. Distributions are choice, uniform, log_uniform and integer.

    [bold]Examples[/]

    trainfleet tune my-search.yaml

    trainfleet tune lm-tiny 'tune={trials: 6, space: {optimizer.lr: {log_uniform: [1e-4, 1e-1]}}}'
    scaling.workers=1

    trainfleet tune my-search.yaml tune.trials=30 --json
    """
    from trainfleet.console import out, print_json
    from trainfleet.training.runtime.counted_progress import CountedProgress
    from trainfleet.training.tune.trials import folder_of
    from trainfleet.training.tune.trials import tune as search_for

    changes = [
        *(overrides or ()),
        *(settings or ()),
        *([f"name={json.dumps(run)}"] if run else ()),
        *([f"storage={json.dumps(storage)}"] if storage else ()),
    ]
    search_recipe = _load(recipe, changes)
    folder = folder_of(search_recipe)
    with _locked(folder, fresh):
        with CountedProgress("trials", quiet=as_json) as counter:

            def hear(event: Mapping[str, Any]) -> None:
                if event["kind"] == "trial":
                    counter(event["done"], event["total"])
                    if event["status"] != "running":
                        counter.say(_line(event))

            found = search_for(search_recipe, folder, hear)
        _write(found, folder)
    if as_json:
        print_json(_document(found, folder, search_recipe))
        return
    out().print(_table(found))
    for name in ("best.yaml", "report.html"):
        out().print(f"{name:<12} {folder / name}", soft_wrap=True, markup=False)


def _load(recipe: str, changes: Sequence[str]) -> Recipe:
    """Load a recipe that defines a search.

    Raises:
        InputError: the recipe or its search is not valid.
    """
    import os

    from trainfleet.errors import InputError, Problem
    from trainfleet.training.recipe.load import load_recipe
    from trainfleet.training.tune.search import check_space

    loaded = load_recipe(recipe, changes, os.environ)
    if loaded.tune is None:
        fix = "tune: {space: {optimizer.lr: {log_uniform: [1e-4, 1e-2]}}}"
        raise InputError("the recipe defines no search", [Problem(f"{recipe}: tune", "is missing", fix)])
    check_space(loaded)
    return loaded


def _write(search: Search, folder: Path) -> None:
    """Write best.yaml and report.html."""
    import yaml

    from trainfleet.files import write_whole
    from trainfleet.training.tune.page import write_page

    document = search.best_recipe(f"{search.recipe.name[:58]}-best")
    if document is not None:
        best = search.best()
        assert best is not None
        trials = f"trial {best.number} of {len(search.trials)}"
        head = f"# The best recipe of {search.recipe.name}'s search by {search.tune.metric}: {trials}.\n"
        write_whole(folder / "best.yaml", head + yaml.safe_dump(document, sort_keys=False))
    write_page(search, folder / "report.html")


def _document(search: Search, folder: Path, recipe: Recipe) -> dict[str, Any]:
    best = search.best()
    assert recipe.tune is not None
    assert best is not None
    step, value = best.best(recipe.tune.mode) or (0, 0.0)
    return {
        "search": str(folder),
        "metric": recipe.tune.metric,
        "mode": recipe.tune.mode,
        "best": {
            "trial": best.number,
            "values": best.values,
            "value": value,
            "step": step,
            "run": str(search.trial_folder(best.number)),
        },
        "recipe": str(folder / "best.yaml"),
        "report": str(folder / "report.html"),
        "trials": [
            {
                "number": each.number,
                "status": each.status,
                "values": each.values,
                "rows": each.rows,
                "error": each.error,
            }
            for each in search.table()
        ],
    }


def _line(event: Mapping[str, Any]) -> str:
    from trainfleet.training.tune.page import shown

    values = ", ".join(f"{key} {shown(value)}" for key, value in event["values"].items())
    figure = (
        f"{event['best'][1]:.6g} at step {event['best'][0]}"
        if event["best"]
        else (event["error"] or "no figure")
    )
    return f"trial {event['number']} {event['status']}: {figure}  ({values})"


def _table(search: Search) -> Any:
    from rich.markup import escape
    from rich.table import Table

    from trainfleet.training.tune.page import shown

    table = Table()
    for name in ("trial", search.tune.metric, *search.tune.space, "validations", "ended"):
        table.add_column(name)
    best = search.best()
    for trial in search.table():
        figure = trial.best(search.tune.mode)
        cells = [
            str(trial.number),
            f"{figure[1]:.6g}" if figure else "-",
            *(shown(trial.values[key]) for key in search.tune.space),
        ]
        style = "bold" if best is not None and trial.number == best.number else ""
        table.add_row(
            *map(escape, [*cells, str(len(trial.rows)), f"{trial.status} {trial.error}".strip()]), style=style
        )
    return table


@contextlib.contextmanager
def _locked(folder: Path, fresh: bool) -> Iterator[None]:
    """Lock the search's folder; `fresh` first moves its content to a backup folder.

    Raises:
        InputError: another search holds the lock, or the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    from trainfleet.errors import InputError, Problem

    lock = FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        if fresh and folder.exists():
            folder.rename(folder.with_name(f"{folder.name}.{datetime.now(UTC):%Y%m%dT%H%M%S}"))
        folder.mkdir(exist_ok=True)
    except Timeout as error:
        raise InputError(
            "this search is already in progress",
            [Problem(str(folder), "another command holds it", "wait for it, or --run NAME")],
        ) from error
    except OSError as error:
        raise InputError(
            "cannot write the search's folder",
            [Problem(str(folder), error.strerror or str(error), "another --storage DIR")],
        ) from error
    try:
        yield
    finally:
        lock.release()
