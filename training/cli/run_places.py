"""Where the commands for runs look: folders and stores, named by `--storage`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainfleet.training.runs.listing import Progress, RunInfo

StorageUrls = Annotated[
    list[str] | None,
    typer.Option("--storage", metavar="DIR|URL", help="The runs below this folder or URL. May be repeated."),
]


def list_urls(urls: Sequence[str]) -> list[RunInfo]:
    """The runs below several folders or URLs, each once."""
    from trainfleet.training.runs.listing import each_once, in_order, list_storage

    places = dict.fromkeys(url.removeprefix("file://") for url in urls)
    return in_order(each_once([run for place in places for run in list_storage(place, reading())]))


def reading() -> Progress:
    """Shows on stderr how many runs were read, if there are many and a person waits."""
    import sys

    def show(done: int, total: int) -> None:
        if total >= 100 and sys.stderr.isatty():
            end = "\n" if done == total else ""
            sys.stderr.write(f"\rread {done} of {total} runs{end}")
            sys.stderr.flush()

    return show
