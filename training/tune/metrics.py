"""Reads the validations of the running trials from what their runs store, in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from trainfleet.training.runs.listing import RETRY
from trainfleet.training.runs.reader import parse_rows
from trainfleet.training.stores import NotFoundError, Store, StoreError, open_store

FOLDER_S, STORE_S = 0.2, 5.0
"""How often runs in a folder and below a URL are read. Below a URL, rows arrive with each checkpoint."""
FILE = "metrics.jsonl"
Row = tuple[int, float]


def validations(store: Store, metric: str) -> list[Row]:
    """Step and metric of each validation of a run so far.

    Raises:
        StoreError: the store does not respond.
    """
    try:
        text = store.read(FILE).decode("utf-8", errors="replace")
    except NotFoundError:
        return []
    rows = parse_rows(text).of("validation")
    return [(int(row["step"]), float(row[metric])) for row in rows if metric in row]


class MetricsReader:
    """Reads the validations of several runs again and again, so that a slow store delays nothing else."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._stores: dict[int, Store] = {}
        self._sizes: dict[int, int] = {}
        self._found: queue.SimpleQueue[tuple[int, list[Row]]] = queue.SimpleQueue()
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="trial-metrics").start()

    def watch(self, number: int, home: str) -> None:
        """Read the run of a trial from now on."""
        self._stores[number] = open_store(home, RETRY)

    def forget(self, number: int) -> None:
        """Read the run of a trial no more."""
        self._stores.pop(number, None)
        self._sizes.pop(number, None)

    def drain(self) -> Iterator[tuple[int, list[Row]]]:
        """What was read since the last call: trials, and all their validations."""
        while True:
            try:
                yield self._found.get_nowait()
            except queue.Empty:
                return

    def close(self) -> None:
        """Stop reading."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._pause()):
            for number, store in list(self._stores.items()):
                try:
                    size = store.entries()[FILE].bytes
                    if size != self._sizes.get(number):
                        self._found.put((number, validations(store, self._metric)))
                        self._sizes[number] = size or 0  # once read: a store may fail in between
                except (KeyError, StoreError):  # nothing there yet, or the store is unavailable for now
                    continue

    def _pause(self) -> float:
        return FOLDER_S if all(store.local for store in list(self._stores.values())) else STORE_S
