"""What the stored files of runs tell: states, steps, cost, and where a run is."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError
from trainfleet.training.launch.find_run import find_run
from trainfleet.training.launch.local_control import LocalControl
from trainfleet.training.launch.remote.where import Where
from trainfleet.training.launch.stored_lines import RESTART_S, STORE_POLL_S, stored_lines
from trainfleet.training.runs import listing
from trainfleet.training.runs.listing import list_folder, list_storage, read_info
from trainfleet.training.runtime.run_lock import locked
from trainfleet.training.stores import RetryPolicy, Store, open_store
from trainfleet.training.stores.lease import LEASE, STOP, Lease, remove_stop, request_stop

START = {"at": "2026-11-01T10:00:00+00:00", "from_step": 0, "held_seconds": 3600, "usd_per_hour": 2.5}
LAUNCH = {"at": "2026-11-01T09:50:00+00:00", "on": "torchrun", "owner": "ada", "starts_before": 0}


def a_run(folder: Path, lease: dict[str, Any] | None = None, age_s: float = 0.0, **record: Any) -> Path:
    """A run's folder; `age_s`: since when its lease was not renewed."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"name": folder.name, "steps": 40, **record}))
    if lease is not None:
        file = folder / LEASE
        file.write_text(json.dumps({"owner": "a", "count": 7, "host": "elsewhere", **lease}))
        os.utime(file, (time.time() - age_s,) * 2)
    return folder


@pytest.mark.parametrize(
    ("record", "lease", "age_s", "state"),
    [
        ({"status": "running", "starts": [START], "launches": [LAUNCH]}, {}, 5, "running"),
        ({"status": "running", "starts": [START], "launches": [LAUNCH]}, {}, 5000, "lost"),
        ({"status": "running", "starts": [START], "launches": [LAUNCH]}, None, 0, "lost"),
        ({"status": "finished", "starts": [START], "launches": [LAUNCH]}, None, 0, "finished"),
        ({"status": "failed", "starts": [START], "launches": [LAUNCH], "error": "a\nb"}, None, 0, "failed"),
        ({"launches": [LAUNCH | {"status": "failed", "error": "no image"}]}, None, 0, "failed"),
        ({"launches": [LAUNCH]}, None, 0, "lost"),  # its launcher was killed before its first step
        # It was stopped, and launched again; that launch ended before the loop started.
        (
            {
                "status": "stopped",
                "starts": [START],
                "launches": [LAUNCH, LAUNCH | {"starts_before": 1, "status": "interrupted"}],
            },
            None,
            0,
            "interrupted",
        ),
        # `runs attach` says nothing about the run.
        (
            {
                "status": "finished",
                "starts": [START],
                "launches": [LAUNCH, LAUNCH | {"attached": True, "starts_before": 1}],
            },
            None,
            0,
            "finished",
        ),
    ],
)
def test_the_state_of_a_run_follows_from_its_files(
    tmp_path: Path, record: dict[str, Any], lease: dict[str, Any] | None, age_s: float, state: str
) -> None:
    a_run(tmp_path / "night", lease, age_s, **record)
    (found,) = list_storage(str(tmp_path))
    assert (found.name, found.state, found.launcher, found.owner) == ("night", state, "torchrun", "ada")


@pytest.mark.parametrize(
    ("ended", "held", "state"),
    [
        ({}, True, "running"),  # its launcher restarts the workers
        ({"status": "failed"}, True, "failed"),  # its launcher has recorded the end, and leaves soon
        ({}, False, "failed"),  # its launcher was killed
    ],
)
def test_a_run_whose_workers_restart_has_not_failed(
    tmp_path: Path, ended: dict[str, Any], held: bool, state: str
) -> None:
    folder = a_run(tmp_path / "night", status="failed", starts=[START], launches=[LAUNCH | ended])
    with locked(folder, fresh=False) if held else contextlib.nullcontext():
        for (found,) in (list_storage(str(tmp_path)), list_folder(tmp_path)):
            assert found.state == state
        info = find_run("night", Where(), str(tmp_path)).info()
        assert info is not None
        assert info.state == state


def test_a_run_elsewhere_is_not_lost_while_a_launcher_here_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = LAUNCH | {"on": "kuberay", "storage": "s3://runs/night"}
    there = a_run(tmp_path / "there", status="running", starts=[START], launches=[launch])
    here = a_run(tmp_path / "runs" / "night", launches=[launch])

    def opened(url: str, retry: RetryPolicy) -> Store:
        return open_store(str(there) if url == launch["storage"] else url, retry)

    monkeypatch.setattr(listing, "open_store", opened)
    with locked(here, fresh=False):
        assert [each.state for each in list_folder(tmp_path / "runs")] == ["running"]
    assert [each.state for each in list_folder(tmp_path / "runs")] == ["lost"]
    # Another launch has started it since.
    again = launch | {"at": "2026-11-02T00:00:00+00:00"}
    (there / "run.json").write_text(json.dumps({"starts": [START], "launches": [again]}))
    with locked(here, fresh=False):
        assert [each.state for each in list_folder(tmp_path / "runs")] == ["lost"]


def test_a_folder_that_fresh_moved_aside_does_not_list_the_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = LAUNCH | {"storage": "s3://runs/night", "status": "failed"}
    again = first | {"at": "2026-11-02T00:00:00+00:00", "status": "detached"}
    there = a_run(tmp_path / "there", status="finished", name="night", starts=[START], launches=[again])
    for name, launch in (("night.20261102T000000", first), ("night", again)):
        a_run(tmp_path / "runs" / name, name="night", launches=[launch])

    def opened(url: str, retry: RetryPolicy) -> Store:
        return open_store(str(there) if url == first["storage"] else url, retry)

    monkeypatch.setattr(listing, "open_store", opened)
    (found,) = list_folder(tmp_path / "runs")
    assert (found.state, found.launch["at"], found.usd) == ("finished", again["at"], 2.5)


def test_a_run_below_a_url_is_followed_while_its_workers_restart(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "night", {}, status="running", starts=[START], launches=[LAUNCH])
    lease, waits = (folder / LEASE).read_text(), 0
    store = open_store(str(folder))
    store.backend.local = False

    def wait(_: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            (folder / LEASE).unlink()  # the ranks have failed
        elif waits == 5:
            (folder / LEASE).write_text(lease)
            (folder / "metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 1}) + "\n")
        elif waits == 7:
            (folder / LEASE).unlink()
        assert waits < 100, "its end is never known"

    first, last = stored_lines(store, "night", follow=True, wait=wait)
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert first["row"]["step"] == 1
    assert (last["kind"], waits) == ("warning", 7 + RESTART_S / STORE_POLL_S)


def test_a_lease_that_seems_old_is_observed_because_clocks_differ(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "night", {}, 120, status="running", starts=[START], launches=[LAUNCH])
    store = open_store(str(folder))

    def renewed(_: float) -> None:
        store.put(LEASE, json.dumps({"owner": "a", "count": 8, "host": "elsewhere"}).encode())

    waits: list[float] = []
    assert read_info(store, "night", wait=waits.append).state == "lost"  # type: ignore[union-attr]
    assert waits == [7.5]
    os.utime(folder / LEASE, (time.time() - 120,) * 2)
    assert read_info(store, "night", wait=renewed).state == "running"  # type: ignore[union-attr]


def test_a_lease_of_a_dead_process_of_this_machine_is_not_held(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "night", status="running", starts=[START], launches=[LAUNCH])
    lease = Lease(open_store(str(folder)), "launch", heartbeat_s=60)
    lease.acquire()
    try:
        assert read_info(open_store(str(folder)), "night").state == "running"  # type: ignore[union-attr]
        document = json.loads((folder / LEASE).read_text()) | {"pid": 2**22 + 1}
        (folder / LEASE).write_text(json.dumps(document))
        assert read_info(open_store(str(folder)), "night").state == "lost"  # type: ignore[union-attr]
    finally:
        lease.release()


def test_steps_cost_and_message_are_listed(tmp_path: Path) -> None:
    starts = [START, START | {"usd_per_hour": 5.0, "held_seconds": 1800}]
    folder = a_run(
        tmp_path / "b", status="failed", starts=starts, launches=[LAUNCH], error="x\nout of memory"
    )
    rows = [{"kind": "train", "step": step} for step in range(2000)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "tr')
    a_run(tmp_path / "a", status="finished", starts=[START], launches=[LAUNCH])
    (tmp_path / "not-a-run").mkdir()
    first, second = list_folder(tmp_path)
    assert (first.name, first.usd, first.step) == ("a", 2.5, None)
    assert (second.step, second.steps, second.usd, second.message) == (1999, 40, 5.0, "out of memory")
    assert second.document()["storage"] == str(folder)


def test_progress_counts_the_runs(tmp_path: Path) -> None:
    for number in range(20):
        a_run(tmp_path / f"run-{number:02}", status="finished", starts=[START], launches=[LAUNCH])
    seen: list[tuple[int, int]] = []
    found = list_storage(str(tmp_path), lambda *each: seen.append(each))
    assert [each.name for each in found] == sorted(each.name for each in found)
    assert seen == [(number, 20) for number in range(1, 21)]


def test_the_holder_of_a_lease_is_asked_to_stop_once(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    assert not request_stop(store), "nobody holds it"
    lease = Lease(store, "launch-1", heartbeat_s=0.01)
    lease.acquire()
    try:
        store.put(STOP, b"launch-0")  # of an earlier launch, which ended before it saw it
        count = json.loads((tmp_path / LEASE).read_text())["count"]
        deadline = time.monotonic() + 30
        while json.loads((tmp_path / LEASE).read_text())["count"] < count + 3:
            assert time.monotonic() < deadline
        assert not lease.stop_requested
        assert request_stop(store)
        while not lease.stop_requested:
            assert time.monotonic() < deadline
    finally:
        lease.release()
    assert (tmp_path / STOP).exists(), "the launch may restart the holder before it has saved"
    remove_stop(store)
    remove_stop(store)
    assert not (tmp_path / STOP).exists()


@pytest.mark.parametrize("group", ["launch-1", ""])
def test_a_request_to_stop_is_for_one_launch(tmp_path: Path, group: str) -> None:
    """A launch without a name removes it at once, because a later one could not tell whose it is."""
    store = open_store(str(tmp_path))

    def is_asked(group: str) -> bool:
        lease = Lease(store, group, heartbeat_s=0.01)
        lease.acquire()
        try:
            count, deadline = 0, time.monotonic() + 30
            while count < 4 and not lease.stop_requested:
                assert time.monotonic() < deadline
                count = json.loads((tmp_path / LEASE).read_text())["count"]
        finally:
            lease.release()
        return lease.stop_requested

    store.put(STOP, group.encode())
    assert [is_asked("launch-2"), is_asked(group), is_asked(group)] == [False, True, group != ""]
    assert not is_asked("launch-2")


def test_a_resumed_run_shows_each_step_once(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "night", status="running", starts=[START], launches=[LAUNCH])
    file, polls = folder / "metrics.jsonl", []

    def write(steps: range, **more: Any) -> None:
        rows = [{"kind": "train", "step": step, **more} for step in steps]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def wait(_: float) -> None:
        polls.append(1)
        if len(polls) == 1:
            write(range(1, 3), loss=2.0)  # resumed from step 2
        elif len(polls) == 2:
            write(range(1, 6), loss=3.0)
            (folder / "run.json").write_text(json.dumps({"status": "finished", "starts": [START]}))

    write(range(1, 4), loss=1.0)
    lines = list(stored_lines(open_store(str(folder)), "night", follow=True, held=lambda: True, wait=wait))
    rows = [line["row"] for line in lines if isinstance(line, dict) and line["kind"] == "interval"]
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 1), (2, 1), (3, 1), (4, 3), (5, 3)]


def test_a_run_is_found_here_or_in_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = {**LAUNCH, "host": platform.node(), "folder": str(tmp_path / "runs" / "night")}
    a_run(tmp_path / "runs" / "night", status="stopped", starts=[START], launches=[here])
    control = find_run("night", Where())
    assert isinstance(control, LocalControl)
    assert control.stop(now=False, within_s=1, report=print) == "had already ended"
    a_run(tmp_path / "far" / "night", status="stopped", starts=[START], launches=[LAUNCH | {"on": "local"}])
    for storage in ("far", "file://far", "far/night", "far/"):
        found = find_run("night", Where(), storage)
        assert (found.ref.home, found.ref.launch["on"]) == ("far/night", "local")
    with pytest.raises(InputError, match=r"far: has no run `nigth` \(.*night"):
        find_run("nigth", Where(), "far")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    for name, fix in (("nigth", "did you mean `night`?"), ("day", "--storage URL")):
        with pytest.raises(InputError, match="no such run") as raised:
            find_run(name, Where())
        first, second = map(str, raised.value.problems)
        assert first.startswith(f"runs/: has no run `{name}`")
        assert fix in first
        assert second.startswith("--context: your kubeconfig has no current context")
