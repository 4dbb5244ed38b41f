"""What the stored files of runs tell about them: state, step, owner, launcher and cost so far.

It reads a run's record, last launch, lease and newest metrics, from any machine that may read the storage.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainfleet.errors import TrainfleetError
from trainfleet.training.runs.limits import used_by
from trainfleet.training.runs.reader import real_launches
from trainfleet.training.runs.storage import HOME, LAUNCH
from trainfleet.training.runtime.run_lock import is_locked
from trainfleet.training.stores import (
    Entry,
    NotFoundError,
    RetryPolicy,
    Store,
    StoreError,
    is_remote,
    open_store,
)
from trainfleet.training.stores.lease import HEARTBEAT_S, LEASE, holder_is_alive

RETRY = RetryPolicy(attempts=2, first_s=0.5, longest_s=2.0, stall_s=20.0)
"""Few retries: somebody waits for the answer."""
READERS = 32
"""Runs that are read at once; a request to a store takes tens of milliseconds."""
FRESH_S = 60.0
"""A lease that was renewed within this time, by this machine's clock, is held."""
CLOCK_ERROR_S = 900.0
"""A lease that seems to be older than FRESH_S and not than this is observed: clocks differ."""
TAIL_BYTES = 8192
ENDED = ("finished", "stopped", "failed")
"""States that the loop records as its end."""
ACTIVE = ("running", "starting", "not started")
"""States of a run that may still train without another launch."""

Progress = Callable[[int, int], Any]
"""Called with the number of runs that were read, and of all."""


def _silent(_done: int, _total: int) -> None:
    return None


@dataclass(frozen=True)
class RunInfo:
    """A run, as its files tell.

    Attributes:
        home: the folder or URL of its files.
        state: running, starting (its launcher prepares it), not started (launched elsewhere, without a step
            yet), finished, stopped, failed, interrupted, lost (nobody renews its lease), or unknown.
        step, steps: the last step of its metrics, and its number of steps; None if unknown.
        since: when it was launched last, as an ISO time; empty if unknown.
        usd: the cost so far; None if the price of its machines is unknown.
        message: why it failed, or why its files cannot be read.
        record, launch: run.json, and its last launch.
        extra: further fields of its document, of a launcher.
    """

    name: str
    home: str
    state: str
    step: int | None = None
    steps: int | None = None
    since: str = ""
    usd: float | None = None
    message: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)
    launch: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def launcher(self) -> str:
        """The value of `--on`; empty if unknown."""
        return str(self.launch.get("on", ""))

    @property
    def owner(self) -> str:
        """Who launched it; empty if unknown."""
        return str(self.launch.get("owner", ""))

    def age_s(self) -> float | None:
        """Seconds since it was launched last."""
        try:
            since = datetime.fromisoformat(self.since.replace("Z", "+00:00"))
        except ValueError:
            return None
        return max(0.0, (datetime.now(UTC) - since).total_seconds())

    def document(self) -> dict[str, Any]:
        """What `--json` prints."""
        place = self.launch.get("place")
        return {
            "run": self.name,
            "state": self.state,
            "on": self.launcher or None,
            "owner": self.owner or None,
            "step": self.step,
            "steps": self.steps,
            "since": self.since,
            "usd": self.usd,
            "storage": self.home,
            "place": dict(place) if isinstance(place, Mapping) else {},
            "message": self.message,
            **self.extra,
        }


def read_info(
    store: Store, name: str, held: bool = False, wait: Callable[[float], Any] = time.sleep
) -> RunInfo | None:
    """A run from its folder or URL; None if there is no run.

    Args:
        store: its files.
        name: its name, unless run.json has another.
        held: whether a launcher on this machine holds its lock.
        wait: waits for seconds, to see whether a lease is renewed.

    Raises:
        StoreError: the store does not respond.
    """
    files = store.entries()
    if not {"run.json", LAUNCH} & files.keys():
        return None
    record = _read_json(store, "run.json") if "run.json" in files else {}
    launches = real_launches(record)
    launch: Mapping[str, Any] = launches[-1] if launches else {}
    if LAUNCH in files:
        launch = _newer(launch, _read_json(store, LAUNCH))
    held_by_ranks = _is_renewed(store, files.get(LEASE), wait)
    last = _last_row(store, files.get("metrics.jsonl"))
    starts = record.get("starts")
    state = _state(record, launch, held_by_ranks, held, remote=not store.local)
    return RunInfo(
        name=str(record.get("name") or name),
        home=store.url,
        state=state,
        step=int(last["step"]) if last else _number(record.get("step")),
        steps=_number(record.get("steps")),
        since=str(launch.get("at", "")),
        usd=used_by(starts if isinstance(starts, list) else []).usd,
        message=_message(record, launch) if state in ("failed", "interrupted") else "",
        record=record,
        launch=launch,
    )


def list_storage(
    url: str,
    progress: Progress = _silent,
    wait: Callable[[float], Any] = time.sleep,
) -> list[RunInfo]:
    """The runs below a folder or URL, the oldest launch first. Calls `progress(read, all)`.

    Raises:
        InputError: the URL is not valid.
        StoreError: the store does not respond.
    """
    names = [each.name for each in open_store(url, RETRY).entries().values() if each.folder]

    return in_order(read_all(lambda name: read_stored(url, name, wait), names, progress))


def read_stored(url: str, name: str, wait: Callable[[float], Any] = time.sleep) -> RunInfo | None:
    """The run of this name below a folder or URL; None if there is none. A run whose storage does not
    respond is `unknown`, with the reason.
    """
    return _read(open_store(f"{url.rstrip('/')}/{name}", RETRY), name, wait)


def _read(store: Store, name: str, wait: Callable[[float], Any]) -> RunInfo | None:
    try:
        return read_info(store, name, is_held(store), wait)
    except StoreError as error:
        return RunInfo(name, store.url, "unknown", message=_reason(error))


def is_held(store: Store) -> bool:
    """Whether a launcher holds the lock of a run's folder; below a URL there is none."""
    return store.local and is_locked(Path(store.url))


def list_folder(
    folder: Path,
    progress: Progress = _silent,
    wait: Callable[[float], Any] = time.sleep,
) -> list[RunInfo]:
    """The runs that were launched into a folder of this machine; those elsewhere as their storage tells.

    A run whose storage does not respond is listed with the reason.
    """
    names = sorted(path.parent.name for path in folder.glob("*/run.json"))

    # The folder that --fresh has moved aside (`x.DATE`, after `x`) names the URL of the run that replaced it.
    return in_order(each_once(read_all(lambda name: read_launched(folder, name, wait), names, progress)))


def read_launched(folder: Path, name: str, wait: Callable[[float], Any] = time.sleep) -> RunInfo | None:
    """The run of this name that was launched into a folder of this machine; None if there is none. A run
    whose files cannot be read is `unknown`, with the reason.
    """
    run_dir = folder / name
    here = _read(open_store(str(run_dir), RETRY), name, wait)
    home = home_of(here.launch, run_dir) if here else ""
    if here is None or here.state in ("finished", "unknown") or not is_remote(home):
        return here
    try:
        there = read_info(open_store(home, RETRY), name, wait=wait)
    except TrainfleetError as error:
        return replace(here, home=home, state="unknown", message=_reason(error))
    return _merged(here, there, home)


def home_of(launch: Mapping[str, Any], run_dir: Path) -> str:
    """Where a run of this machine is stored: a URL, or its folder."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(launch.get("storage") or json.loads((run_dir / HOME).read_text(encoding="utf-8"))["url"])
    return str(run_dir)


def read_all(
    read: Callable[[str], RunInfo | None],
    names: Sequence[str],
    progress: Progress = _silent,
) -> list[RunInfo]:
    """The results of `read(name)` in the order of the names, several at once; without the missing ones."""
    with ThreadPoolExecutor(max_workers=max(1, min(READERS, len(names)))) as pool:
        reading = [pool.submit(read, name) for name in names]
        for number, _ in enumerate(as_completed(reading), 1):
            progress(number, len(names))
        return [found for each in reading if (found := each.result()) is not None]


def each_once(runs: Sequence[RunInfo]) -> list[RunInfo]:
    """The first of the runs of each folder or URL: several folders of this machine can name one URL."""
    found: dict[str, RunInfo] = {}
    for each in runs:
        home = each.home.rstrip("/")
        found.setdefault(home if is_remote(home) else str(Path(home).resolve()), each)
    return list(found.values())


def in_order(runs: Sequence[RunInfo]) -> list[RunInfo]:
    """The oldest launch first, then by name."""
    return sorted(runs, key=lambda each: (each.since, each.name))


def _merged(here: RunInfo, there: RunInfo | None, home: str) -> RunInfo:
    """A run elsewhere: what its storage tells, and that a launcher here prepares it or has failed."""
    if there is None:
        state = "not started" if here.state == "lost" else here.state
        return replace(here, home=home, state=state)
    launch = _newer(there.launch, here.launch) if here.launch else there.launch
    if there.state == "not started" and here.state in ("starting", "running", "failed", "interrupted"):
        state = "starting" if here.state == "running" else here.state
        return replace(there, state=state, message=here.message, launch=launch)
    # Ranks that fail release the lease, and only a launcher or follower here knows that they restart.
    followed = here.state in ("starting", "running") and launch.get("at") == here.launch.get("at")
    return replace(
        there, launch=launch, state="running" if there.state == "lost" and followed else there.state
    )


def _newer(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """The later of two launches; the fields of both if they are the same."""
    if one.get("at") == other.get("at"):
        return {**one, **other} if other.get("status") else {**other, **one}
    return max((one, other), key=lambda launch: str(launch.get("at", "")))


def _state(
    record: Mapping[str, Any], launch: Mapping[str, Any], renewed: bool | None, held: bool, *, remote: bool
) -> str:
    recorded, launched = str(record.get("status", "")), str(launch.get("status", ""))
    starts = record.get("starts")
    # Counted, not dated: the clocks of the launcher and of the machines that train differ.
    started = len(starts) if isinstance(starts, list) else 0
    pending = started <= int(launch.get("starts_before", 0)) if launch else False
    if renewed:
        return "running"
    if pending:
        if launched in ("", "detached"):
            return "starting" if held else "not started" if remote else "lost"
        return "lost" if launched == "killed" else launched
    # The ranks record a failure before their launcher restarts them, and the launcher its end.
    restarting = recorded == "failed" and held and not launched
    if recorded in ENDED and not restarting:
        return recorded
    if held:
        return "running"
    return launched if launched in ("failed", "interrupted", *ENDED) else "lost"


def _is_renewed(store: Store, lease: Entry | None, wait: Callable[[float], Any]) -> bool | None:
    """Whether the ranks renew the lease; None if there is none."""
    if lease is None:
        return None
    before = _read_json(store, LEASE)
    if (here := holder_is_alive(before)) is not None:
        return here
    age = time.time() - (lease.modified or 0.0)
    if age < FRESH_S:
        return True
    if age > CLOCK_ERROR_S and lease.modified is not None:
        return False
    wait(1.5 * HEARTBEAT_S)
    return bool(_read_json(store, LEASE).get("count") != before.get("count"))


def _last_row(store: Store, metrics: Entry | None) -> dict[str, Any] | None:
    """The last readable row of metrics.jsonl."""
    size = metrics.bytes if metrics else 0
    if not size:
        return None
    length = min(size, TAIL_BYTES)
    try:
        text = store.read("metrics.jsonl", size - length, length).decode("utf-8", errors="replace")
    except StoreError:  # a resumed run has shortened it meanwhile
        return None
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                return row
    return None


def _read_json(store: Store, path: str) -> dict[str, Any]:
    try:
        document = json.loads(store.read(path))
    except (NotFoundError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _message(record: Mapping[str, Any], launch: Mapping[str, Any]) -> str:
    text = str(launch.get("error") or record.get("error") or "")
    return text.strip().splitlines()[-1] if text.strip() else ""


def _reason(error: TrainfleetError) -> str:
    return next((f"{each.where} {each.what}" for each in error.problems), error.summary)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
