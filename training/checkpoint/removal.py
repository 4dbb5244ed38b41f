"""Removes old checkpoints in a thread, so that neither a save nor a step waits for a store that deletes
slowly.

The thread ends with the process: a checkpoint whose marker is removed already does not count, and the next
start removes its files.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any


class Removals:
    """Checkpoints to remove, one at a time, in their order."""

    def __init__(self, remove: Callable[[str], Any]) -> None:
        """`remove`: removes a checkpoint by its name, and reports what fails."""
        self._remove = remove
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        self._current: str | None = None
        self._running = False

    def add(self, names: Iterable[str]) -> None:
        """Remove these too; does not wait."""
        with self._changed:
            self._waiting.extend(
                name for name in names if name != self._current and name not in self._waiting
            )
            if self._waiting and not self._running:
                self._running = True
                threading.Thread(target=self._work, daemon=True, name="checkpoint-removal").start()

    def cancel(self) -> None:
        """Begin no further removal of those that were added."""
        with self._changed:
            self._waiting.clear()

    def exclude(self, name: str) -> None:
        """Return when this checkpoint is not about to be removed."""
        with self._changed:
            if name in self._waiting:
                self._waiting.remove(name)
            self._changed.wait_for(lambda: self._current != name)

    def wait(self, limit_s: float) -> bool:
        """Wait until all are removed, for at most `limit_s`; whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, limit_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._current = self._waiting.popleft() if self._waiting else None
                self._running = self._current is not None
                self._changed.notify_all()
                if self._current is None:
                    return
                name = self._current
            try:
                self._remove(name)
            finally:
                with self._changed:
                    self._current = None
