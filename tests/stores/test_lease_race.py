"""Of several launches of one run that race, on any store, exactly one starts, and the others name it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.stores import lease_process
from tests.stores.running import Running
from trainfleet.errors import InputError
from trainfleet.training.stores import ConflictError, RetryPolicy, Store, open_store
from trainfleet.training.stores.conditional_clouds import S3Files
from trainfleet.training.stores.lease import LEASE, Lease

LAUNCHES = 8
QUICK = RetryPolicy(4, 0.05, 0.2, 20.0)
every = pytest.mark.parametrize("store_server", ["s3", "gs", "az"], indirect=True)
ABANDONED = {"owner": "gone", "group": "earlier", "host": "elsewhere", "pid": 1, "boot": "", "count": 7}


@contextmanager
def racing(url: str) -> Iterator[tuple[list[str], list[str]]]:
    """Race launches of one run; yields the process ids of those that hold its lease, and the refusals."""
    with ExitStack() as stack:
        processes = []
        for number in range(LAUNCHES):
            # The writes are further apart than a launch without conditional writes would wait.
            delay_s = 2 * lease_process.SETTLE_S * number
            command = [
                sys.executable,
                "-m",
                "tests.stores.lease_process",
                url,
                f"launch-{number}",
                str(delay_s),
            ]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.stdout.readline().split(maxsplit=1) for process in processes if process.stdout]
        yield (
            [text for what, text in answers if what == "holds"],
            [text for what, text in answers if what == "refused"],
        )


def check_one_holds(holders: list[str], refusals: list[str], store: Store) -> None:
    assert len(holders) == 1
    assert len(refusals) == LAUNCHES - 1
    pid = holders[0].strip()
    assert json.loads(store.read(LEASE))["pid"] == int(pid)
    for text in refusals:
        assert "already in progress" in text
        assert f"process {pid} on " in text


@pytest.mark.sampled(1)
@every
def test_one_of_eight_racing_launches_starts(store_server: Running, prefix: str) -> None:
    url = store_server.url(prefix)
    with racing(url) as (holders, refusals):
        check_one_holds(holders, refusals, open_store(url, QUICK))


@pytest.mark.sampled(1)
@every
def test_one_of_eight_racing_launches_takes_over_a_stale_lease(store_server: Running, prefix: str) -> None:
    url = store_server.url(prefix)
    store = open_store(url, QUICK)
    store.put(LEASE, json.dumps(ABANDONED).encode())
    with racing(url) as (holders, refusals):
        check_one_holds(holders, refusals, store)


def test_one_of_eight_racing_launches_starts_in_a_folder(tmp_path: Path) -> None:
    with racing(str(tmp_path)) as (holders, refusals):
        check_one_holds(holders, refusals, open_store(str(tmp_path)))


@pytest.mark.deep
def test_one_of_eight_racing_launches_takes_over_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / LEASE).write_text(json.dumps(ABANDONED))
    with racing(str(tmp_path)) as (holders, refusals):
        check_one_holds(holders, refusals, open_store(str(tmp_path)))


@pytest.mark.parametrize("store_server", ["s3"], indirect=True)
def test_launches_that_race_do_not_remove_each_others_probe(store_server: Running, prefix: str) -> None:
    stores = [open_store(store_server.url(prefix), QUICK) for _ in range(LAUNCHES)]
    with ThreadPoolExecutor(LAUNCHES) as pool:
        assert list(pool.map(Store.probe, stores)) == [None] * LAUNCHES
    assert stores[0].sizes() == {}


def conditions_hold(store: Store, deletes: bool = True) -> None:
    """A file is created once, replaced and removed at its version only."""
    assert store.read_versioned("file") is None
    first = store.put_if("file", b"one", None)
    with pytest.raises(ConflictError):
        store.put_if("file", b"two", None)
    assert store.read_versioned("file") == (b"one", first)
    second = store.put_if("file", b"two", first)
    with pytest.raises(ConflictError):
        store.put_if("file", b"three", first)
    if deletes:
        with pytest.raises(ConflictError):
            store.remove_if("file", first)
    assert store.read("file") == b"two"
    store.remove_if("file", second)
    store.remove_if("file", second)
    with pytest.raises(ConflictError):
        store.put_if("file", b"four", second)
    assert store.sizes().keys() <= {".file.lock"}
    assert store.honours_conditions("probe")
    store.remove_if("file", store.put_if("file", b"five", None))
    assert store.sizes() == {}


@every
def test_conditions_hold_in_a_store(store_server: Running, prefix: str) -> None:
    # fake-gcs-server 1.56 ignores the condition of a delete.
    store = open_store(store_server.url(f"{prefix}/a folder"), QUICK)
    conditions_hold(store, deletes=store_server.server.kind != "gs")


def test_conditions_hold_in_a_folder(tmp_path: Path) -> None:
    conditions_hold(open_store(str(tmp_path), QUICK))


@pytest.mark.parametrize("links", [True, False])
def test_a_folder_keeps_no_partial_files(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:  # as on a FUSE mount of a bucket
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "no links")))
    store = open_store(str(tmp_path), QUICK)
    version = store.put_if("file", b"one", None)
    for condition in (None, "0" * 64):
        with pytest.raises(ConflictError):
            store.put_if("file", b"two", condition)
    store.put_if("file", b"three", version)
    assert store.sizes().keys() == {"file", ".file.lock"}
    assert store.read("file") == b"three"


@pytest.mark.parametrize("store_server", ["s3"], indirect=True)
def test_a_lost_answer_does_not_lose_the_lease(
    store_server: Running, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(store_server.url(prefix), QUICK)
    put, failed = S3Files.put, []

    def put_and_fail(self: S3Files, path: str, data: bytes, version: str | None) -> str:
        written = put(self, path, data, version)
        if path == LEASE and not failed:
            failed.append(written)
            raise OSError("connection reset after the store has written")
        return written

    monkeypatch.setattr(S3Files, "put", put_and_fail)
    lease = Lease(store, "launch", heartbeat_s=0.2)
    lease.acquire()
    lease.verify()
    assert failed
    lease.release()
    assert store.sizes() == {}


@pytest.mark.parametrize("store_server", ["s3"], indirect=True)
@pytest.mark.parametrize("cause", ["ignored", "no package"])
def test_a_store_without_conditions_is_named_and_two_launches_at_once_see_each_other(
    store_server: Running, prefix: str, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    if cause == "ignored":  # as in an older server with S3's interface
        call = S3Files._call

        def call_without(self: S3Files, method: str, path: str, **settings: object) -> object:
            kept = {name: value for name, value in settings.items() if not name.startswith("If")}
            return call(self, method, path, **kept)

        monkeypatch.setattr(S3Files, "_call", call_without)
    else:
        monkeypatch.setitem(sys.modules, "botocore.session", None)
    store = open_store(store_server.url(prefix), QUICK)
    notices: list[str] = []
    first, second = (Lease(store, name, heartbeat_s=0.5, settle_s=0.2) for name in ("one", "two"))
    first.acquire(lambda what, text: notices.append(f"{what}: {text}"))
    words = "ignores the conditions" if cause == "ignored" else "need the package botocore"
    assert len(notices) == 1
    assert words in notices[0]
    with pytest.raises(InputError, match="already in progress"):
        second.acquire()
    first.verify()
    first.release()
    assert LEASE not in store.sizes()
