"""The lock of a run's folder: one launch at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.training.stores.lease import IN_PROGRESS

TRY_S = 0.3
"""How long a launch tries to lock a folder."""


@contextlib.contextmanager
def locked(run_dir: Path, fresh: bool) -> Iterator[None]:
    """Lock the run's folder, created if needed; `fresh` first moves its content to a backup folder.

    Raises:
        InputError: another launch holds the lock, or the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    lock: FileLock | None = None
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        # Not at once: `trainfleet runs list` takes a free lock for a moment.
        lock = FileLock(run_dir / ".lock", timeout=TRY_S)
        lock.acquire()
        if fresh and any(each.name != ".lock" for each in run_dir.iterdir()):
            run_dir.rename(run_dir.with_name(f"{run_dir.name}.{datetime.now(UTC):%Y%m%dT%H%M%S}"))
            # NOTE: the lock file moved with the folder, so the new folder needs a lock of its own.
            lock.release()
            run_dir.mkdir()
            lock = FileLock(run_dir / ".lock", timeout=0)
            lock.acquire()
    except Timeout as error:
        problem = Problem(str(run_dir), "another launch holds it", "wait for it, or use --run NAME")
        raise InputError(IN_PROGRESS, [problem]) from error
    except OSError as error:
        problem = Problem(
            str(run_dir), error.strerror or str(error), "choose another folder with --storage DIR"
        )
        raise InputError("cannot write the run's folder", [problem]) from error
    try:
        yield
    finally:
        lock.release()


def is_locked(run_dir: Path) -> bool:
    """Whether a launch on this machine holds the run's folder; False if it may not be read."""
    from filelock import FileLock, Timeout

    lock = run_dir / ".lock"
    try:
        if not lock.exists():
            return False
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # another user's, or on a file system that is mounted for reading
        return _is_locked_for_readers(lock)


def _is_locked_for_readers(lock: Path) -> bool:
    """The same of a lock file that cannot be written."""
    try:
        file = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def started_elsewhere(name: str, where: str) -> InputError:
    """The error of a launch whose run another launch trains on other machines."""
    fix = f"`trainfleet runs attach {name}` follows it, `trainfleet runs stop {name}` ends it; or --run NAME"
    return InputError(IN_PROGRESS, [Problem(where, "another launch started it", fix)])
