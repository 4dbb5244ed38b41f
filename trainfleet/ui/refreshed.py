"""A value that a slow function computes in a thread, while requests are answered with the newest one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from trainfleet.errors import TrainfleetError

Value = TypeVar("Value")


class Refreshed(Generic[Value]):
    """Computes again when it is asked for and older than `every_s`; never twice at the same time."""

    def __init__(self, compute: Callable[[], Value], empty: Value, every_s: float) -> None:
        self._compute, self._every_s = compute, every_s
        self.value = empty
        self.error: TrainfleetError | None = None
        """Why the last computation failed; the value is then older."""
        self.at: float | None = None
        """When the value was computed, by time.monotonic; None before the first one."""
        self._lock, self._idle = threading.Lock(), threading.Event()
        self._idle.set()
        self._tried: float | None = None

    def get(self, wait_s: float, *, force: bool = False) -> Value:
        """The newest value; waits for a new one for `wait_s` at most if it is old, or with `force`."""
        self.refresh(force=force)
        self._idle.wait(wait_s)
        return self.value

    def refresh(self, *, force: bool = False) -> None:
        """Start a computation if the last one is too old, or with `force`."""
        with self._lock:
            recent = not force and self._tried is not None and time.monotonic() - self._tried < self._every_s
            if recent or not self._idle.is_set():
                return
            self._idle.clear()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def age_s(self) -> float | None:
        """Seconds since the value was computed; None before the first one."""
        return None if self.at is None else time.monotonic() - self.at

    def _run(self) -> None:
        try:
            self.value, self.error = self._compute(), None
            self.at = time.monotonic()
        except TrainfleetError as error:
            self.error = error
        except Exception as error:
            self.error = TrainfleetError(f"{type(error).__name__}: {error}")
            raise
        finally:
            self._tried = time.monotonic()
            self._idle.set()
