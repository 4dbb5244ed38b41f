"""Runs of other users, whose files this user may not write or not even read: listed all the same."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock

from trainfleet.errors import InputError
from trainfleet.training.cli.runs_cost import cost_document
from trainfleet.training.launch.find_run import find_run
from trainfleet.training.launch.remote.where import Where
from trainfleet.training.runs.listing import RunInfo, list_folder, list_storage
from trainfleet.training.runtime.run_lock import is_locked
from trainfleet.training.stores import open_store
from trainfleet.training.stores.lease import Lease

START = {"at": "2026-11-01T10:00:00+00:00", "from_step": 0, "held_seconds": 3600, "usd_per_hour": 2.5}
LAUNCH = {"at": "2026-11-01T09:50:00+00:00", "on": "torchrun", "owner": "ada", "starts_before": 0}

Deny = Callable[[Path, int], None]


@pytest.fixture
def deny(monkeypatch: pytest.MonkeyPatch) -> Deny:
    """Reject what a user other than the owner may not do with the files of a folder of this mode.

    Not by `chmod`: tests also run as root, who may do everything.
    """
    modes: dict[Path, int] = {}

    def require(path: Any, *, write: bool = False) -> None:
        if isinstance(path, str | os.PathLike):
            for folder, mode in modes.items():
                if Path(path).is_relative_to(folder) and (write or (mode == 0o700 and Path(path) != folder)):
                    raise PermissionError(13, "Permission denied", str(path))

    real_open, real_stat, real_scandir = os.open, os.stat, os.scandir

    def opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        require(path, write=bool(flags & (os.O_WRONLY | os.O_RDWR)))
        return real_open(path, flags, *rest, **more)

    def stat(path: Any, **more: Any) -> os.stat_result:
        require(path)
        return real_stat(path, **more)

    def scandir(path: Any = ".") -> Any:
        require(Path(path) / "any")
        return real_scandir(path)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "scandir", scandir)
    return modes.__setitem__


def a_run(folder: Path, status: str = "running") -> Path:
    folder.mkdir(parents=True)
    record = {"name": folder.name, "status": status, "starts": [START], "launches": [LAUNCH]}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / ".lock").touch()
    return folder


def test_the_lock_of_another_user_is_tried_without_writing(tmp_path: Path, deny: Deny) -> None:
    folder = a_run(tmp_path / "night")
    with FileLock(folder / ".lock"):
        deny(folder, 0o755)
        assert is_locked(folder)
        assert [each.state for each in list_storage(str(tmp_path))] == ["running"]
    assert not is_locked(folder), "a file that an ended launch has left"
    assert [each.state for each in list_storage(str(tmp_path))] == ["lost"]


def test_a_folder_that_may_not_be_read_hides_no_other_run(tmp_path: Path, deny: Deny) -> None:
    deny(a_run(tmp_path / "hidden"), 0o700)
    a_run(tmp_path / "night", "finished")
    hidden, night = list_storage(str(tmp_path))
    assert (hidden.name, hidden.state, night.state) == ("hidden", "unknown", "finished")
    assert "no permission" in hidden.message


@pytest.mark.parametrize("listed", [list_folder, lambda folder: list_storage(str(folder))])
def test_a_record_that_may_not_be_read_hides_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: Callable[[Path], list[RunInfo]]
) -> None:
    hidden = a_run(tmp_path / "hidden") / "run.json"
    a_run(tmp_path / "night", "finished")
    real_open = Path.open

    def opened(path: Path, *rest: Any, **more: Any) -> Any:
        if path == hidden:
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *rest, **more)

    monkeypatch.setattr(Path, "open", opened)
    first, second = listed(tmp_path)
    assert (first.name, first.state, second.state) == ("hidden", "unknown", "finished")
    assert "no permission" in first.message
    document = cost_document([first, second], "run", None)
    assert (document["total"]["runs"], document["total"]["usd"]) == (1, 2.5)


def test_a_run_of_another_user_is_stopped_through_its_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_run(tmp_path / "night")
    launcher = {"host": platform.node(), "folder": str(folder), "pid": os.getppid()}
    launch = LAUNCH | launcher | {"pid_started": psutil.Process(os.getppid()).create_time()}
    record = json.loads((folder / "run.json").read_text()) | {"launches": [launch]}
    (folder / "run.json").write_text(json.dumps(record))
    lease = Lease(open_store(str(folder)), "launch-1", heartbeat_s=0.01)
    lease.acquire()

    def refused(process: psutil.Process, number: int) -> None:
        assert process.pid == launch["pid"]
        raise psutil.AccessDenied(process.pid)

    def report(text: str) -> None:
        assert text == "is asked, through its storage, to save and end"
        deadline = time.monotonic() + 30
        while not lease.stop_requested:
            assert time.monotonic() < deadline
        lease.release()

    monkeypatch.setattr(psutil.Process, "send_signal", refused)
    try:
        with FileLock(folder / ".lock"):
            control = find_run("night", Where(), str(tmp_path))
            with pytest.raises(InputError, match="cannot be ended at once"):
                control.stop(now=True, within_s=30, report=report)
            assert control.stop(now=False, within_s=30, report=report) == "saved and ended"
    finally:
        lease.release()
