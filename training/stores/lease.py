"""A lease on a run's storage: one writer at a time, for folders and object stores alike.

The lease is a small file with its owner and a counter that increases every few seconds. A lease whose
counter stops is stale. Clocks of other machines are not trusted: only the counter is compared, never a
time.

Each write of the lease names the version that it replaces, so that the store lets exactly one of several
launches create it or take it over. Where that is not possible (a store with S3's interface that ignores
conditions, or a missing client package), a launch waits for SETTLE_S and reads the lease again: of launches
that start further apart than that, both may run until the next heartbeat.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from trainfleet.errors import InputError, Problem
from trainfleet.training.stores.conditional import ConflictError, UnsupportedConditionsError
from trainfleet.training.stores.store import NotFoundError, Store, StoreError, StoreUnavailableError

IN_PROGRESS = "this run is already in progress"
"""The error of a second launch of a run, whatever holds it."""
LEASE = "LEASE"
STOP = "STOP"
"""The file by which another process asks the holder to save and end: the `group` of its lease.

A file of its own, because a change of the lease by someone else could undo a takeover.
"""
HEARTBEAT_S = 5.0
STALE_AFTER_HEARTBEATS = 4
SETTLE_S = 1.0
"""Delay between writing a new lease and owning it, in a store without conditional writes."""


class Lease:
    """The right to write to a store, renewed by a thread until `release`."""

    def __init__(
        self, store: Store, group: str, heartbeat_s: float = HEARTBEAT_S, settle_s: float = SETTLE_S
    ) -> None:
        """`group` names a launch. A process of the same launch, such as a restarted worker, takes over at
        once.
        """
        self.store, self.group, self.heartbeat_s, self.settle_s = store, group, heartbeat_s, settle_s
        self.owner = secrets.token_hex(8)
        self._count = 0
        self._conditional = True
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost = False
        self.stop_requested = False
        """Whether another process has asked this launch to save and end."""

    def acquire(self, notify: Callable[[str, str], Any] = lambda *_: None) -> None:
        """Take the lease. Waits until an existing one is known to be stale.

        Raises:
            InputError: another run holds it.
            StoreError: the store does not respond.
        """
        self._conditional = self._offers_conditions(notify)
        while True:
            existing, version = self._wait_until_stale(notify)
            try:
                self._write(version)
                break
            except ConflictError as error:
                now, _ = self._read()
                if now is not None and now["owner"] == self.owner:
                    break  # the answer to this write was lost
                # A process of this launch that still renews the lease changes its version all the time.
                if now is not None and not self._is_of_this_launch(now):
                    raise _lease_taken(self.store, now) from error
        if not self._conditional:
            self._await_other_writers(existing)
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._thread.start()

    def _offers_conditions(self, notify: Callable[[str, str], Any]) -> bool:
        """Whether the store lets exactly one of several launches write the lease; a notice if it does not."""
        try:
            if self.store.honours_conditions(f".probe-{self.owner}"):
                return True
            why = "the store ignores the conditions of requests"
        except StoreUnavailableError:
            raise
        except (StoreError, UnsupportedConditionsError) as error:
            why = "; ".join([error.summary, *map(str, getattr(error, "problems", ()))])
        notify(
            "lease",
            f"{self.store.at(LEASE)} is written without conditions ({why}): launches of this run that start "
            f"more than {self.settle_s:g} s apart may both run for {self.heartbeat_s:g} s",
        )
        return False

    def _wait_until_stale(
        self, notify: Callable[[str, str], Any]
    ) -> tuple[dict[str, Any] | None, str | None]:
        """The existing lease, known to be stale, None if there is none; and its version.

        Raises:
            InputError: its holder renews it.
        """
        existing, version = self._read()
        if existing is None or self._is_stale(existing):
            return existing, version
        notify(
            "lease",
            f"{self.store.at(LEASE)} is held by {_owner_text(existing)}; checking whether it is alive",
        )
        deadline = time.monotonic() + STALE_AFTER_HEARTBEATS * self.heartbeat_s
        while time.monotonic() < deadline:
            self._ended.wait(self.heartbeat_s / 2)
            now, version = self._read()
            if now is None:
                return None, version
            if (now["owner"], now["count"]) != (existing["owner"], existing["count"]):
                raise _lease_taken(self.store, now)
        return existing, version

    def _await_other_writers(self, existing: dict[str, Any] | None) -> None:
        """Wait until a launch that started at the same time has written too; the last one has the lease.

        Raises:
            InputError: another one has it.
        """
        if existing is None or not self._is_of_this_launch(existing):
            self._ended.wait(self.settle_s)
        now, _ = self._read()
        if now is None or now["owner"] != self.owner:
            raise _lease_taken(self.store, now or {})

    def check(self) -> None:
        """Fail if another run has taken the lease over.

        Raises:
            InputError: another run writes here, so this one must end.
        """
        if self.lost:
            raise _lease_taken(self.store, self._read()[0] or {})

    def verify(self) -> None:
        """Like `check`, but read the lease now: for what cannot be undone.

        Raises:
            InputError: another run writes here.
            StoreError: the store does not respond.
        """
        now, _ = self._read()
        self.lost = self.lost or (now is not None and now["owner"] != self.owner)
        self.check()

    def release(self) -> None:
        """Release the lease."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(self.heartbeat_s)
            with contextlib.suppress(StoreError, ConflictError):
                now, version = self._read()
                if now is not None and now["owner"] == self.owner:
                    if version is None:
                        self.store.remove([LEASE])
                    else:
                        self.store.remove_if(LEASE, version)
            self._thread = None

    def _renew(self) -> None:
        while not self._ended.wait(self.heartbeat_s):
            # The store is unavailable for now, or another process wrote just now: the next read tells.
            with contextlib.suppress(StoreError, ConflictError):
                now, version = self._read()
                if now is not None and now["owner"] != self.owner:
                    self.lost = True
                    return
                if not self._ended.is_set():
                    self._write(version)
                self._look_for_stop()

    def _look_for_stop(self) -> None:
        with contextlib.suppress(NotFoundError):
            if not self.stop_requested and self.store.read(STOP).decode() == self.group:
                self.stop_requested = True
                if not self.group:  # a later launch without a name would take it for its own
                    self.store.remove([STOP])

    def _write(self, version: str | None) -> None:
        """Write the lease in place of this version, None if there must be none.

        Raises:
            ConflictError: another process has written.
        """
        self._count += 1
        document = {
            "owner": self.owner,
            "group": self.group,
            "host": platform.node(),
            "pid": os.getpid(),
            "boot": _boot_id(),
            "count": self._count,
        }
        data = json.dumps(document).encode()
        if self._conditional:
            self.store.put_if(LEASE, data, version)
        else:
            self.store.put(LEASE, data)

    def _read(self) -> tuple[dict[str, Any] | None, str | None]:
        """The lease, None if there is none or it is unreadable; and its version for the write that depends
        on it, None without conditional writes.
        """
        version = None
        try:
            if self._conditional:
                if (found := self.store.read_versioned(LEASE)) is None:
                    return None, None
                data, version = found
            else:
                data = self.store.read(LEASE)
            document = json.loads(data)
            return {"owner": str(document["owner"]), "count": int(document["count"]), **document}, version
        except (NotFoundError, ValueError, KeyError, TypeError):
            return None, version

    def _is_stale(self, existing: dict[str, Any]) -> bool:
        """Whether a lease is stale without observing it: of this launch, or of a dead process of this
        machine.
        """
        return self._is_of_this_launch(existing) or holder_is_alive(existing) is False

    def _is_of_this_launch(self, existing: dict[str, Any]) -> bool:
        return bool(self.group) and existing.get("group") == self.group


def holder_is_alive(lease: Mapping[str, Any]) -> bool | None:
    """Whether the process that holds a lease runs; None if it is on another machine."""
    if (lease.get("host"), lease.get("boot")) != (platform.node(), _boot_id()) or not _boot_id():
        return None
    try:
        return psutil.Process(int(lease.get("pid", 0))).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def request_stop(store: Store) -> bool:
    """Ask the holder of a store's lease to save and end; whether there is one.

    The holder looks every HEARTBEAT_S. The request stays until it has saved and ended (`remove_stop`): its
    launch may restart it before that. It has no effect on later launches.

    Raises:
        StoreError: the store does not respond, or does not allow writing.
    """
    try:
        group = str(json.loads(store.read(LEASE)).get("group", ""))
    except (NotFoundError, ValueError, AttributeError):
        return False
    store.put(STOP, group.encode())
    return True


def remove_stop(store: Store) -> None:
    """Remove the request of `request_stop`, as the holder that has saved and is about to end."""
    with contextlib.suppress(StoreError):  # only this launch would read it
        store.remove([STOP])


def _boot_id() -> str:
    """Identifies this machine's boot, because process ids restart with it (Linux; else empty)."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return ""


def _owner_text(existing: dict[str, Any]) -> str:
    return f"process {existing.get('pid', '?')} on {existing.get('host', 'another machine')}"


def _lease_taken(store: Store, existing: dict[str, Any]) -> InputError:
    problem = Problem(
        store.url, f"{_owner_text(existing)} writes here", "wait for it or stop it, or use --run NAME"
    )
    return InputError(IN_PROGRESS, [problem])
