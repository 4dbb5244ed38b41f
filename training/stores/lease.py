"""Who is at work in a run's home: one owner at a time, for folders and object stores alike.

Used by `trainfleet.training.runs.storage`. The lease is a small file with its owner and a count that goes up
every few seconds; one whose count
stands still is nobody's. Easy to get wrong: no clock of another machine is to be believed, so a count is
watched, never a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from trainfleet.errors import InputError, Problem
from trainfleet.training.stores.store import NotThereError, Store, StoreError

LEASE = "LEASE"
BEAT_S = 5.0
PATIENCE_BEATS = 4
SETTLE_S = 1.0
"""After writing a new lease, before it counts as ours: two that start in the same moment must see each other."""


class Lease:
    """The right to write below a store, kept up by a thread until `release`."""

    def __init__(self, store: Store, group: str, beat_s: float = BEAT_S, settle_s: float = SETTLE_S) -> None:
        """`group` names a launch: a process of the same launch takes a lease over without waiting, as after a
        restart of its workers.
        """
        self.store, self.group, self.beat_s, self.settle_s = store, group, beat_s, settle_s
        self.owner = secrets.token_hex(8)
        self._count = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost = False

    def acquire(self, notify: Callable[[str, str], Any] = lambda *_: None) -> None:
        """Take the lease; waits for as long as it takes to see that an old one is nobody's.

        Raises:
            InputError: another run holds it.
            StoreError: the store does not answer.
        """
        there = self._read()
        if there is not None and not self._is_over(there):
            notify(
                "lease",
                f"{self.store.at(LEASE)} is held by {_whose(there)}; looking whether that run still lives",
            )
            deadline = time.monotonic() + PATIENCE_BEATS * self.beat_s
            while time.monotonic() < deadline:
                self._ended.wait(self.beat_s / 2)
                now = self._read()
                if now is None:
                    break
                if (now["owner"], now["count"]) != (there["owner"], there["count"]):
                    raise _refusal(self.store, now)
        self._write()
        if there is None:
            self._ended.wait(0 if self.store.local else self.settle_s)
        now = self._read()
        if now is None or now["owner"] != self.owner:
            raise _refusal(self.store, now or {})
        self._thread = threading.Thread(target=self._keep, daemon=True, name="lease")
        self._thread.start()

    def check(self) -> None:
        """Raise where somebody else has taken the lease over.

        Raises:
            InputError: two runs write here; this one ends.
        """
        if self.lost:
            raise _refusal(self.store, self._read() or {})

    def release(self) -> None:
        """Give the lease back."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(self.beat_s)
            with contextlib.suppress(StoreError):
                if (now := self._read()) is not None and now["owner"] == self.owner:
                    self.store.remove([LEASE])
            self._thread = None

    def _keep(self) -> None:
        while not self._ended.wait(self.beat_s):
            with contextlib.suppress(
                StoreError
            ):  # a store that is gone for a while: whoever takes over will be seen later
                now = self._read()
                if now is not None and now["owner"] != self.owner:
                    self.lost = True
                    return
                if not self._ended.is_set():
                    self._write()

    def _write(self) -> None:
        self._count += 1
        document = {
            "owner": self.owner,
            "group": self.group,
            "host": platform.node(),
            "pid": os.getpid(),
            "boot": _boot(),
            "count": self._count,
        }
        self.store.put(LEASE, json.dumps(document).encode())

    def _read(self) -> dict[str, Any] | None:
        try:
            document = json.loads(self.store.read(LEASE))
            return {"owner": str(document["owner"]), "count": int(document["count"]), **document}
        except (NotThereError, ValueError, KeyError, TypeError):
            return None

    def _is_over(self, there: dict[str, Any]) -> bool:
        """Whether a lease is known to be nobody's without watching it: of our own launch, or of a dead
        process of this machine.
        """
        if self.group and there.get("group") == self.group:
            return True
        if (there.get("host"), there.get("boot")) != (platform.node(), _boot()) or not _boot():
            return False
        return not psutil.pid_exists(int(there.get("pid", 0)))


def _boot() -> str:
    """This machine's start, so that process ids of before it count for nothing (Linux; empty elsewhere)."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return ""


def _whose(there: dict[str, Any]) -> str:
    return f"process {there.get('pid', '?')} on {there.get('host', 'another machine')}"


def _refusal(store: Store, there: dict[str, Any]) -> InputError:
    problem = Problem(store.url, f"{_whose(there)} writes here", "wait for it or end it, or use --run NAME")
    return InputError("this run is going on already", [problem])
