"""The runs of the given folders and stores: a list that is kept current, and each run when its page is shown.

NOTE: a page names a run by its place and folder, and only those of the list are read. A run whose files are
links to elsewhere is listed and not read: a user who can write a run must not choose which file is shown.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trainfleet.console import EXTRAS, install_hint
from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.report.run_summary import RunSummary, read_run_summary
from trainfleet.training.runs.listing import (
    ENDED,
    RETRY,
    RunInfo,
    read_all,
    read_launched,
    read_stored,
)
from trainfleet.training.runs.storage import HOME, LAUNCH
from trainfleet.training.stores import is_remote, open_store
from trainfleet.training.stores.lease import LEASE
from trainfleet.ui.refreshed import Refreshed
from trainfleet.ui.sampled_curve import sampled_curve

READ_FILES = ("run.json", "recipe.yaml", "metrics.jsonl", "launch.log", ".lock", HOME, LAUNCH, LEASE)
"""The files of a run's folder that are read, besides those of its checkpoints."""
LIST_EVERY_S = 3.0
STORE_EVERY_S = 20.0
"""Reading a store costs requests."""
MOST_BYTES = 64 * 2**20
"""Of the end of a metrics.jsonl."""
CACHED_BYTES = 96 * 2**20
"""Bytes of metrics.jsonl whose rows are kept; in memory they take some five times as much."""
CACHED_PAGES = 32
READ_AT_ONCE = 2
"""Runs whose rows are read at the same time."""

DAMAGE = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError)
"""What a reader of a run raises for values that no trainer wrote."""

Stamp = tuple[Any, ...]
"""Changes when a file was written."""


class Key(NamedTuple):
    """Names a run: the position of its place among `--runs`, and its folder there."""

    place: int
    folder: str


@dataclass(frozen=True)
class ListedRun:
    """A run of the list; `curve` are some points of its training loss, to be drawn small."""

    key: Key
    info: RunInfo
    readable: bool = True
    curve: tuple[tuple[float, float], ...] = ()


@dataclass
class Place:
    """A folder or URL with runs, and what was read of them so far."""

    index: int
    url: str
    runs: dict[str, ListedRun] = field(default_factory=dict)
    stamps: dict[str, Stamp] = field(default_factory=dict)
    done: int = 0
    total: int = 0

    @property
    def remote(self) -> bool:
        """Whether it is an object store."""
        return is_remote(self.url)

    def read(self) -> int:
        """Read the runs again; those that ended and were not written since keep what was read.

        Raises:
            TrainfleetError: the store does not respond.
        """
        names = self._names()
        self.done, self.total = 0, len(names)
        for name in set(self.runs) - set(names):
            self.runs.pop(name, None)

        def progress(done: int, _total: int) -> None:
            self.done = done

        return len(read_all(self._read, names, progress))

    def _names(self) -> list[str]:
        if self.remote:
            return sorted(each.name for each in open_store(self.url, RETRY).entries().values() if each.folder)
        try:
            with os.scandir(self.url) as found:
                return sorted(each.name for each in found if each.is_dir() and not each.name.startswith("."))
        except FileNotFoundError:
            return []

    def _read(self, name: str) -> RunInfo | None:
        found = self._stored(name) if self.remote else self._launched(name)
        if found is None:
            self.runs.pop(name, None)
            return None
        self.runs[name] = found
        return found.info

    def _stored(self, name: str) -> ListedRun | None:
        info = _explained(lambda: read_stored(self.url, name), name, f"{self.url.rstrip('/')}/{name}")
        return ListedRun(Key(self.index, name), info) if info else None

    def _launched(self, name: str) -> ListedRun | None:
        key, folder = Key(self.index, name), Path(self.url)
        if not _has_run(folder / name):
            return None
        if link := link_outside(folder / name):
            message = f"{link} is a link out of the run's folder, so the run is not read"
            return ListedRun(key, RunInfo(name, str(folder / name), "unknown", message=message), False)
        stamp, before = stamp_of(folder / name), self.runs.get(name)
        if before and before.info.state in ENDED and stamp == self.stamps.get(name):
            return before
        info = _explained(lambda: read_launched(folder, name), name, str(folder / name))
        if info is None:
            return None
        self.stamps[name] = stamp
        return ListedRun(key, info, curve=tuple(sampled_curve(folder / name / "metrics.jsonl")))


class RunStore:
    """The runs of all places."""

    def __init__(self, urls: list[str]) -> None:
        self.places = [Place(index, url) for index, url in enumerate(urls)]
        self._lists = [
            Refreshed(place.read, 0, STORE_EVERY_S if place.remote else LIST_EVERY_S) for place in self.places
        ]
        self._summaries: OrderedDict[Key, tuple[Stamp, RunSummary]] = OrderedDict()
        self._lock, self._reading = threading.Lock(), threading.Semaphore(READ_AT_ONCE)
        self._busy: dict[Key, threading.Lock] = {}
        self._pages: OrderedDict[Key, tuple[Stamp, RunInfo, dict[str, Any]]] = OrderedDict()

    def refresh(self) -> None:
        """Start to read the lists that are old."""
        for each in self._lists:
            each.refresh()

    def listed(self, wait_s: float) -> list[ListedRun]:
        """The runs, the newest launch first; waits for each place for `wait_s` at most."""
        self.refresh()
        for each in self._lists:
            each.get(wait_s)
        found = [run for place in self.places for run in list(place.runs.values())]
        return sorted(found, key=lambda run: (run.info.since, run.key), reverse=True)

    def notes(self) -> list[str]:
        """Which places are still being read, and which do not respond."""
        notes = []
        for place, reading in zip(self.places, self._lists, strict=True):
            if reading.error is not None:
                problems = "; ".join(map(str, reading.error.problems))
                notes.append(f"{place.url} cannot be read: {problems or reading.error.summary}")
            elif reading.at is None:
                notes.append(f"Reading {place.url}: {place.done} of {place.total or '?'} runs so far.")
        return notes

    def find(self, place: int, folder: str, wait_s: float) -> ListedRun | None:
        """A run of the list; None if the list does not have it."""
        if not 0 <= place < len(self.places):
            return None
        if folder not in self.places[place].runs:
            self._lists[place].get(wait_s, force=True)  # it may be new
        return self.places[place].runs.get(folder)

    def summary(self, run: ListedRun) -> RunSummary:
        """The whole run; read again only if its files were written.

        Raises:
            TrainfleetError: it cannot be read.
        """
        place, url = self.places[run.key.place], self._url(run)
        with self._lock:
            own = self._busy.setdefault(run.key, threading.Lock())
        with own:
            stamp = self._stamp(run)
            with self._lock:
                cached = self._summaries.get(run.key)
                if cached and cached[0] == stamp:
                    self._summaries.move_to_end(run.key)
                    return cached[1]
            if not place.remote and (link := link_outside(Path(url))):
                raise TrainfleetError(f"{link} is a link out of the run's folder, so the run is not read")
            with self._reading:
                # A run stored elsewhere names its home in a file: it is not asked, it may not respond.
                stored = not place.remote and not (Path(url) / HOME).exists()
                summary = read_run_summary(url, most_bytes=MOST_BYTES, stored=stored)
            self._keep(run.key, stamp, summary)
            return summary

    def page(self, run: ListedRun, compute: Callable[[RunSummary], dict[str, Any]]) -> dict[str, Any]:
        """What a page shows of a run; computed again only if its files were written.

        Raises:
            TrainfleetError: it cannot be read.
        """
        stamp = self._stamp(run)
        with self._lock:
            cached = self._pages.get(run.key)
        if cached and cached[:2] == (stamp, run.info):
            return cached[2]
        with damage_explained(run):
            values = compute(self.summary(run))
        with self._lock:
            self._pages[run.key] = (stamp, run.info, values)
            self._pages.move_to_end(run.key)
            while len(self._pages) > CACHED_PAGES:
                self._pages.popitem(last=False)
        return values

    def _url(self, run: ListedRun) -> str:
        return f"{self.places[run.key.place].url.rstrip('/')}/{run.key.folder}"

    def _stamp(self, run: ListedRun) -> Stamp:
        url = self._url(run)
        return stamp_of_stored(url) if self.places[run.key.place].remote else stamp_of(Path(url))

    def bytes_of(self, run: ListedRun) -> int:
        """The size of the metrics.jsonl of a run whose summary was read."""
        with self._lock:
            cached = self._summaries.get(run.key)
        return metrics_bytes(cached[0]) if cached else 0

    def _keep(self, key: Key, stamp: Stamp, summary: RunSummary) -> None:
        with self._lock:
            self._summaries[key] = (stamp, summary)
            self._summaries.move_to_end(key)
            while len(self._summaries) > 1 and self._bytes() > CACHED_BYTES:
                self._summaries.popitem(last=False)

    def _bytes(self) -> int:
        return sum(metrics_bytes(stamp) for stamp, _ in self._summaries.values())


@contextmanager
def damage_explained(*runs: ListedRun) -> Iterator[None]:
    """Files of a run can hold anything: values of other types than the trainer writes.

    Raises:
        TrainfleetError: they cannot be shown.
    """
    try:
        yield
    except DAMAGE as error:
        home = ", ".join(run.info.home for run in runs)
        problem = Problem(home, f"{type(error).__name__}: {error}", "compare run.json with another run's")
        raise TrainfleetError("the files of this run are damaged", [problem]) from error


def metrics_bytes(stamp: Stamp) -> int:
    """The size of metrics.jsonl in a stamp."""
    return next((int(each[2]) for each in stamp if each[0] == "metrics.jsonl"), 0)


def stamp_of(run_dir: Path) -> Stamp:
    """Name, time and size of the files that a page of the run shows."""
    found = []
    for name in ("run.json", "metrics.jsonl", "recipe.yaml", "launch.log", LAUNCH):
        try:
            status = (run_dir / name).stat()
        except OSError:
            continue
        found.append((name, status.st_mtime_ns, status.st_size))
    return tuple(found)


def stamp_of_stored(url: str) -> Stamp:
    """The same of a run in an object store.

    Raises:
        StoreError: the store does not respond.
    """
    entries = open_store(url, RETRY).entries()
    names = ("run.json", "metrics.jsonl", "recipe.yaml", LAUNCH)
    return tuple((name, entries[name].modified, entries[name].bytes) for name in names if name in entries)


def link_outside(run_dir: Path) -> str:
    """A file of the run that is a link out of its folder, or the folder out of its parent; empty if none."""
    if run_dir.is_symlink() and run_dir.resolve().parent != run_dir.parent.resolve():
        return run_dir.name
    for name in (*READ_FILES, "checkpoints", "profile"):
        path = run_dir / name
        # Also one that leads nowhere: it may lead somewhere later.
        if path.is_symlink() and not path.resolve().is_relative_to(run_dir.resolve()):
            return f"{run_dir.name}/{name}"
    return ""


def _has_run(run_dir: Path) -> bool:
    return any((run_dir / name).is_file() or (run_dir / name).is_symlink() for name in ("run.json", LAUNCH))


def _explained(read: Callable[[], RunInfo | None], name: str, home: str) -> RunInfo | None:
    """A run that cannot be read is listed with the reason."""
    try:
        return read()
    except TrainfleetError as error:
        return RunInfo(name, home, "unknown", message="; ".join(map(str, error.problems)) or error.summary)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(str(error.name).partition(".")[0])
        hint = install_hint(extra) if extra else "install it"
        return RunInfo(name, home, "unknown", message=f"the package {error.name} is missing: {hint}")
    except OSError as error:
        return RunInfo(name, home, "unknown", message=f"{error.filename}: {error.strerror}")
    except DAMAGE as error:
        what = f"its files are damaged ({type(error).__name__}: {error})"
        return RunInfo(name, home, "unknown", message=what)
