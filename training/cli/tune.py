"""`trainfleet tune`: tune hyperparameters with trials that any launcher runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.launch import given_options
from trainfleet.training.cli.launch_options import OF_LAUNCHES, Code, On, Stacks, with_launcher_options
from trainfleet.training.cli.options import AliasedCommand, JsonAtEnd, Overrides, RecipeName, RunName, Set

if TYPE_CHECKING:
    from trainfleet.training.launch.clusters.summary import Member
    from trainfleet.training.launch.request import Request
    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.runtime.counted_progress import CountedProgress
    from trainfleet.training.tune.search import Search

SearchStorage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="DIR|URL",
        help="Where to store search and trials, in STORAGE/NAME-tune: a folder, s3://, gs:// or az://. By "
        "default the stack's, else runs/.",
    ),
]
FreshSearch = Annotated[
    bool,
    typer.Option("--fresh", help="Start over. The previous search in a folder is backed up, never deleted."),
]

tune = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)

HELP = """Tune hyperparameters and write the best recipe to best.yaml. Rerun to resume, also elsewhere.

The recipe defines the space: [dim]tune: {trials: 12, space: {optimizer.lr: {log_uniform: [1e-4, 1e-2]}}}[/].
Distributions are choice, uniform, log_uniform and integer. A trial is a run, launched like one of `trainfleet
launch`, `tune.concurrent` at a time. `tune.scheduler` ends poor trials early.

[bold]Examples[/]

trainfleet tune my-search.yaml --on torchrun

trainfleet tune lm-tiny --on torchrun 'tune={trials: 6, space: {optimizer.lr: {log_uniform: [1e-4, 1e-1]}}}'
scaling.workers=1

trainfleet tune my-search.yaml --on torchrun tune.trials=30 --storage s3://my-bucket/runs --json

trainfleet tune my-search.yaml --on kuberay --stack outputs.json tune.concurrent=4 scaling.use_gpu=true

trainfleet tune my-search.yaml --on sky --stack aws-prod.json --stack gcp-prod.json --managed
"""


@tune.command(cls=AliasedCommand, help=HELP, epilog=EXIT_CODES)
@with_launcher_options(OF_LAUNCHES)
def tune_command(  # noqa: PLR0917 - Typer passes options by name
    ctx: typer.Context,
    recipe: RecipeName,
    overrides: Overrides = None,
    on: On = "local",
    run: RunName = None,
    stack: Stacks = None,
    storage: SearchStorage = None,
    code: Code = None,
    fresh: FreshSearch = False,
    settings: Set = None,
    as_json: JsonAtEnd = False,
) -> None:
    """See HELP."""
    from trainfleet.console import out, print_json
    from trainfleet.training.launch.base import parse_options
    from trainfleet.training.launch.request import Request
    from trainfleet.training.runtime.counted_progress import CountedProgress
    from trainfleet.training.tune.search import home_of
    from trainfleet.training.tune.trials import tune as search_for

    request = Request(
        recipe,
        overrides=(*(overrides or ()), *(settings or ())),
        on=on,
        run=run,
        storage=storage,
        stacks=tuple(stack or ()),
        code=code,
        json=True,
        options=parse_options(on, given_options(ctx)),
    )
    search_recipe = _load(request)
    folder = search_recipe.run_dir().absolute().with_name(f"{search_recipe.name}-tune")
    with _locked(folder, home_of(search_recipe), fresh):
        with CountedProgress("trials", quiet=as_json) as counter:

            def hear(event: Mapping[str, Any]) -> None:
                counter(event["done"], event["total"])
                if event["status"] != "running":
                    counter.say(_line(event))

            found = search_for(request, search_recipe, folder, hear, _View(counter))
        _write(found, folder)
    if as_json:
        print_json(_document(found, folder))
        return
    out().print(_table(found))
    for name in ("best.yaml", "report.html"):
        out().print(f"{name:<12} {folder / name}", soft_wrap=True, markup=False)


class _View:
    """What the launches of the trials report, as lines between those of the search."""

    def __init__(self, counter: CountedProgress) -> None:
        self._counter = counter

    def handle(self, member: Member, event: Mapping[str, Any]) -> None:
        if event["kind"] in ("note", "warning", "moved") and not member.ended:
            self._counter.say(f"[{member.name}] {event['text']}")

    def warn(self, text: str) -> None:
        self._counter.say(text)

    def ask(self, answers: Mapping[str, str], interrupted: Callable[[], bool]) -> str:
        from trainfleet.training.runtime.progress import ask_on_terminal

        with self._counter.hidden():
            return ask_on_terminal(answers, interrupted)

    def close(self) -> None: ...


def _load(request: Request) -> Recipe:
    """Load a recipe that defines a search.

    Raises:
        InputError: the recipe or its search is not valid.
    """
    import os

    from trainfleet.errors import InputError, Problem
    from trainfleet.training.launch import code
    from trainfleet.training.launch.supervise import resolve
    from trainfleet.training.tune.search import check_space

    code.import_first(code.folder_of(request.code, request.recipe, request.overrides))
    loaded, _ = resolve(request, os.environ)
    if loaded.tune is None:
        fix = "tune: {space: {optimizer.lr: {log_uniform: [1e-4, 1e-2]}}}"
        problem = Problem(f"{request.recipe}: tune", "is missing", fix)
        raise InputError("the recipe defines no search", [problem])
    check_space(loaded)
    return loaded


def _write(search: Search, folder: Path) -> None:
    """Write best.yaml and report.html, also next to the search's state."""
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
    for name in ("best.yaml", "report.html") if not search.store.local else ():
        search.store.put(name, (folder / name).read_bytes())


def _document(search: Search, folder: Path) -> dict[str, Any]:
    best = search.best()
    assert best is not None
    step, value = best.best(search.tune.mode) or (0, 0.0)
    return {
        "search": search.home,
        "metric": search.tune.metric,
        "mode": search.tune.mode,
        "best": {
            "trial": best.number,
            "values": best.values,
            "value": value,
            "step": step,
            "run": search.trial_home(best),
        },
        "recipe": str(folder / "best.yaml"),
        "report": str(folder / "report.html"),
        "trials": [
            {
                "number": each.number,
                "run": search.trial_home(each),
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
def _locked(folder: Path, home: str, fresh: bool) -> Iterator[None]:
    """Lock the search's folder on this machine; `fresh` first moves its content to a backup folder.

    Raises:
        InputError: another search holds the lock, the folder cannot be written, or a search below a URL would
            be overwritten.
    """
    from filelock import FileLock, Timeout

    from trainfleet.errors import InputError, Problem
    from trainfleet.training.stores import is_remote, open_store

    if fresh and is_remote(home) and open_store(home).sizes():
        what = "already contains a search, which cannot be moved aside in an object store"
        raise InputError("--fresh would overwrite a search", [Problem(home, what, "--run NAME")])
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
