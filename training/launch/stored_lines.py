"""A run's lines from its stored files, for a machine that reaches neither its processes nor its cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from trainfleet.training.launch.remote.log_stream import Line
from trainfleet.training.runs.listing import ACTIVE, RunInfo, read_info
from trainfleet.training.stores import NotFoundError, Store

FOLDER_POLL_S, STORE_POLL_S = 0.5, 5.0
"""How often a followed run is read. Below a URL, rows arrive with each checkpoint."""
RESTART_S = 60.0
"""How long workers that failed may take to restart: until then nobody renews the lease below the URL."""


def stored_lines(
    store: Store,
    name: str,
    *,
    follow: bool,
    held: Callable[[], bool] = lambda: False,
    wait: Callable[[float], Any] = time.sleep,
) -> Iterator[Line]:
    """The events that a run's metrics record; with `follow`, those until it no longer runs.

    Args:
        store: the run's files.
        name: the run's name.
        follow: whether to continue until the run's end.
        held: whether a launcher on this machine holds the run's lock.
        wait: waits for seconds.

    Raises:
        StoreError: the store does not respond.
    """
    seen: set[str] = set()
    size, state, lost_s = -1, "", 0.0
    while True:
        info = read_info(store, name, held(), wait)
        found = store.entries().get("metrics.jsonl")
        if found is not None and (found.bytes != size or store.local):
            size = found.bytes
            yield from _new(_text(store), seen)
        if state and not store.local and info is not None and info.state == "lost" and lost_s < RESTART_S:
            lost_s += STORE_POLL_S
            wait(STORE_POLL_S)
            continue
        lost_s = 0.0
        if info is None or not follow or info.state not in ACTIVE:
            if follow and info is not None:
                yield from _ending(info)
            return
        if info.state not in (state, "running"):
            yield {"kind": "note", "text": f"{info.state}: its storage has no new step yet"}
        state = info.state
        wait(FOLDER_POLL_S if store.local else STORE_POLL_S)


def event_of(row: dict[str, Any]) -> dict[str, Any]:
    """A row of metrics.jsonl as the event that a launcher shows."""
    match row.get("kind"):
        case "train":
            return {"kind": "interval", "row": row}
        case "event":
            return {"kind": "event", "what": row.get("what", ""), "text": row.get("text", "")}
        case "decision":
            change = f"{row.get('what')} {row.get('old')} -> {row.get('new')}"
            text = f"{change} after step {row['step']}: {row.get('why', '')}"
            return {"kind": "event", "what": "decision", "text": text}
    metrics = {key: value for key, value in row.items() if isinstance(value, float)}
    text = " ".join(f"{key.partition('/')[2]} {value:.4f}" for key, value in metrics.items())
    return {"kind": "event", "what": str(row.get("kind", "")), "text": f"step {row['step']} {text}"}


def _text(store: Store) -> str:
    try:
        return store.read("metrics.jsonl").decode("utf-8", errors="replace")
    except NotFoundError:
        return ""


def _new(text: str, seen: set[str]) -> Iterator[Line]:
    """The events of complete rows that were not passed yet; a resumed run repeats rows, with other times."""
    for line in text.split("\n")[:-1]:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            continue
        key = line if row.get("kind") in ("event", "decision") else f"{row.get('kind')} {row['step']}"
        if key not in seen:
            seen.add(key)
            yield event_of(row)


def _ending(info: RunInfo) -> Iterator[Line]:
    if info.state in ("failed", "interrupted"):
        yield {"kind": "crash", "rank": 0, "error": info.message or info.state, "trace": ""}
    elif info.state == "lost":
        text = "nobody renews the run's lease: its machines are gone, or cannot reach its storage"
        yield {"kind": "warning", "text": text}
