"""The folders of a launch: one that lives as long as it does, and the run's own, held so that no second
launch writes there.

Used by `trainfleet.training.launch.supervise` and `trainfleet.training.runtime.subprocess_jobs`. Easy to get
wrong: paths of sockets may have 107 characters, and a lock
must be taken anew after the folder that it lies in was moved aside.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from trainfleet import process
from trainfleet.errors import InputError, Problem


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A short-lived folder with a short path (sockets live in it); those of launches that were killed are
    swept first.
    """
    root = Path(tempfile.gettempdir())
    for old in root.glob("tf-*-*"):
        with contextlib.suppress(OSError, ValueError):
            if not process.alive(int(old.name.split("-")[1])) and old.stat().st_uid == os.getuid():
                shutil.rmtree(old, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f"tf-{os.getpid()}-", dir=root))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def locked(run_dir: Path, fresh: bool) -> Iterator[None]:
    """Hold the run's folder, made if need be; with `fresh`, what was in it has been moved aside.

    Raises:
        InputError: another launch holds it, or it cannot be written.
    """
    from filelock import FileLock, Timeout

    lock: FileLock | None = None
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = FileLock(run_dir / ".lock", timeout=0)
        lock.acquire()
        if fresh and any(each.name != ".lock" for each in run_dir.iterdir()):
            aside = run_dir.with_name(f"{run_dir.name}.{datetime.now(UTC):%Y%m%dT%H%M%S}")
            run_dir.rename(aside)
            lock.release()
            run_dir.mkdir()
            lock = FileLock(run_dir / ".lock", timeout=0)
            lock.acquire()
    except Timeout as error:
        raise InputError(
            "this run is going on already",
            [Problem(str(run_dir), "another launch holds it", "wait for it, or use --run NAME")],
        ) from error
    except OSError as error:
        problem = Problem(
            str(run_dir), error.strerror or str(error), "choose another folder with --storage DIR"
        )
        raise InputError("cannot write the run's folder", [problem]) from error
    try:
        yield
    finally:
        lock.release()
