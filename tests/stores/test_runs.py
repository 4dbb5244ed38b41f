"""Runs in an object store: saved, killed, moved to another machine, disturbed, and never torn."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.stores.running import Running
from tests.training.test_loop import kill_at_failpoint, results
from tests.training.training_runs import StopAfter
from trainfleet.errors import InputError
from trainfleet.training.checkpoint import CheckpointError
from trainfleet.training.inference.loaded import load_run
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.reader import read_rows
from trainfleet.training.stores import RetryPolicy, open_store
from trainfleet.training.stores.lease import LEASE, Lease
from trainfleet.training.trainer.context import RunResult

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
RunRanks = Callable[..., list[int]]
often_one_kind = pytest.mark.parametrize(
    "store_server",
    ["s3", *(pytest.param(kind, marks=pytest.mark.deep) for kind in ("gs", "az"))],
    indirect=True,
)
one_kind = pytest.mark.parametrize("store_server", ["s3"], indirect=True)
SHORT = (
    "checkpoint.patience.first_wait=0.05",
    "checkpoint.patience.longest_wait=0.2",
    "checkpoint.patience.stall=20",
)


@pytest.mark.deep
@pytest.mark.parametrize("store_server", ["s3", "gs", "az"], indirect=True)
def test_a_run_resumes_exactly_on_another_machine(
    tmp_path: Path, tiny: Make, run: Run, cache: Path, store_server: Running, prefix: str
) -> None:
    recipe = tiny(f"storage={store_server.url(prefix)}", "log.every=3", *SHORT)
    run(tiny("log.every=3"), tmp_path / "whole")
    here = run(recipe, tmp_path / "here", should_stop=StopAfter(5))
    assert here.checkpoint == f"{recipe.home_url()}/checkpoints/step-00000005"
    assert not (tmp_path / "here" / "checkpoints").exists()
    there = run(recipe, tmp_path / "there")
    assert there.resumed_from == 5
    assert results(tmp_path / "there") == results(tmp_path / "whole")
    record = json.loads((tmp_path / "there" / "run.json").read_text())
    assert [start["from_step"] for start in record["starts"]] == [0, 5]
    assert load_run(recipe.home_url(), "newest", cache=cache).step == 12
    store = open_store(recipe.home_url())
    assert store.read("metrics.jsonl") == (tmp_path / "there" / "metrics.jsonl").read_bytes()
    assert LEASE not in store.sizes()
    back = run(recipe, tmp_path / "here")
    assert (back.resumed_from, results(tmp_path / "here")) == (12, results(tmp_path / "whole"))


@often_one_kind
def test_faults_during_a_run_change_nothing(
    tmp_path: Path, tiny: Make, run: Run, store_server: Running, prefix: str
) -> None:
    run(tiny(), tmp_path / "whole")
    faults: dict[int, dict[str, Any]] = {
        3: {"fault": "reset", "times": 2},
        5: {"fault": "status", "times": 2, "status": 503},
        8: {"fault": "cut", "times": 2, "after": 50},
    }
    events: list[str] = []

    def disturb(step: int, _: int) -> None:
        if step in faults:
            store_server.proxy.fail(**faults[step])

    recipe = tiny(f"storage={store_server.url(prefix)}", "checkpoint.patience.attempts=8", *SHORT)
    run(recipe, tmp_path / "run", on_step=disturb, on_event=lambda what, text: events.append(what))
    assert results(tmp_path / "run") == results(tmp_path / "whole")
    assert events.count("checkpoint") == 3


@one_kind
def test_an_unavailable_store_stops_the_run_and_the_error_names_the_last_checkpoint(
    tmp_path: Path, tiny: Make, run: Run, store_server: Running, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The lease cannot be released, and its process, this one, stays alive.
    monkeypatch.setattr("trainfleet.training.stores.lease.STALE_AFTER_HEARTBEATS", 1)
    intolerant = ("checkpoint.patience.attempts=2", "checkpoint.tolerate={saves: 0, minutes: 0}")
    recipe = tiny(f"storage={store_server.url(prefix)}", *intolerant, *SHORT)
    events: list[str] = []

    def cut_off(step: int, _: str) -> None:
        if step == 4:
            store_server.proxy.fail("status", times=100_000, status=503)

    with pytest.raises(CheckpointError, match="cannot save the checkpoint of step 8") as caught:
        run(recipe, tmp_path / "run", on_checkpoint=cut_off, on_event=lambda what, text: events.append(what))
    assert f"the last good checkpoint is {recipe.home_url()}/checkpoints/step-00000004" in str(caught.value)
    assert "store" in events
    store_server.proxy.repair()
    assert run(recipe, tmp_path / "run").resumed_from == 4


@pytest.mark.deep
@one_kind
def test_a_run_continues_while_its_store_is_unavailable_and_saves_as_soon_as_it_is_back(
    tmp_path: Path, tiny: Make, run: Run, store_server: Running, prefix: str
) -> None:
    run(tiny("log.every=1"), tmp_path / "whole")
    failed: list[str] = []

    def go_away(step: int, _: str) -> None:
        if step == 4:
            store_server.proxy.fail("status", times=100_000, status=503)

    def come_back(what: str, text: str) -> None:
        if what == "save_failed":
            failed.append(text)
            if len(failed) == 2:
                store_server.proxy.repair()

    changes = ("log.every=1", "checkpoint.patience.attempts=2", *SHORT)
    recipe = tiny(f"storage={store_server.url(prefix)}", *changes)
    done = run(recipe, tmp_path / "run", on_checkpoint=go_away, on_event=come_back)
    found = [row for row in results(tmp_path / "run") if row["kind"] != "event"]
    assert [{**row, "failed_saves": 0} for row in found] == [
        {**row, "failed_saves": 0} for row in results(tmp_path / "whole")
    ]
    assert done.checkpoint == f"{recipe.home_url()}/checkpoints/step-00000012"
    rows = read_rows(tmp_path / "run")
    assert [row["what"] for row in rows.of("event") if row["what"] == "save_failed"] == ["save_failed"] * 2
    store = open_store(recipe.home_url())
    assert store.read("metrics.jsonl") == (tmp_path / "run" / "metrics.jsonl").read_bytes()


@often_one_kind
@pytest.mark.parametrize(
    "point",
    [
        "partly-written:8",
        *(
            pytest.param(each, marks=pytest.mark.deep)
            for each in ("staged:8", "in-save:8", "before-marker:8", "in-purge:4")
        ),
    ],
)
def test_a_run_killed_during_an_upload_resumes_exactly(
    tmp_path: Path, tiny: Make, run: Run, run_ranks: RunRanks, store_server: Running, prefix: str, point: str
) -> None:
    whole = tiny("checkpoint.keep_last=1", "checkpoint.keep_best=false", "workload.model.dropout=0.1")
    recipe = tiny(
        f"storage={store_server.url(prefix)}",
        "checkpoint.keep_last=1",
        "checkpoint.keep_best=false",
        "workload.model.dropout=0.1",
        *SHORT,
    )
    environment = store_server.environment()

    def before(_: int) -> None:
        os.environ.update(environment)
        kill_at_failpoint(point)

    run(whole, tmp_path / "whole")
    assert run_ranks(recipe, tmp_path / "killed", 1, before=before) == [-signal.SIGKILL]
    ended = run(recipe, tmp_path / "killed")
    assert ended.resumed_from in (4, 8)
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    assert {path.split("/")[0] for path in open_store(f"{recipe.home_url()}/checkpoints").sizes()} == {
        "step-00000012"
    }


@one_kind
def test_a_second_run_in_the_same_place_is_refused(
    tmp_path: Path, tiny: Make, run: Run, store_server: Running, prefix: str
) -> None:
    recipe = tiny(f"storage={store_server.url(prefix)}", *SHORT)
    first = Lease(open_store(recipe.home_url()), "another launch", heartbeat_s=0.2, settle_s=0.1)
    first.acquire()
    try:
        with pytest.raises(InputError, match="this run is already in progress"):
            run(recipe, tmp_path / "run")
    finally:
        first.release()
    assert run(recipe, tmp_path / "run").status == "finished"


@pytest.mark.parametrize("remote", [False, True])
@one_kind
def test_only_an_abandoned_lease_is_taken_over(
    tmp_path: Path, store_server: Running, prefix: str, remote: bool
) -> None:
    store = open_store(
        store_server.url(prefix) if remote else str(tmp_path / "home"), RetryPolicy(3, 0.05, 0.1, 20.0)
    )
    held = Lease(store, "one", heartbeat_s=0.2, settle_s=0.1)
    held.acquire()
    with pytest.raises(InputError, match="writes here"):
        Lease(store, "two", heartbeat_s=0.5, settle_s=0.1).acquire()
    restarted = Lease(store, "one", heartbeat_s=0.2, settle_s=0.1)
    restarted.acquire()
    held._thread.join(20)  # type: ignore[union-attr]  # it has one
    with pytest.raises(InputError):
        held.check()
    held.release()
    restarted.check()
    restarted.release()
    left = json.loads(b"{}") | {
        "owner": "x",
        "group": "g",
        "host": "a machine that is gone",
        "pid": 1,
        "boot": "b",
        "count": 7,
    }
    store.put(LEASE, json.dumps(left).encode())
    heir = Lease(store, "three", heartbeat_s=0.1, settle_s=0.1)
    heir.acquire()
    heir.release()
    assert LEASE not in store.sizes()


@one_kind
def test_two_heirs_of_a_stale_lease_see_each_other_without_conditional_writes(
    store_server: Running, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    store = open_store(store_server.url(prefix), RetryPolicy(3, 0.05, 0.1, 20.0))
    gone = {"owner": "x", "group": "g", "host": "gone", "pid": 1, "boot": "b", "count": 7}
    store.put(LEASE, json.dumps(gone).encode())
    first = Lease(store, "one", heartbeat_s=0.1, settle_s=0.1)

    class Both:
        """The second heir writes its lease after the first one, which still settles."""

        def wait(self, seconds: float) -> bool:
            if seconds == first.settle_s:
                second._write(None)
            return False

        def set(self) -> None: ...

    second = Lease(store, "two")
    second._conditional = False
    first._ended = Both()  # type: ignore[assignment]
    with pytest.raises(InputError, match="already in progress"):
        first.acquire()


@one_kind
def test_a_bucket_without_permission_is_reported_before_the_first_step(
    tmp_path: Path, tiny: Make, run: Run, store_server: Running, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    steps: list[int] = []
    with pytest.raises(Exception, match="rejects the credentials"):
        run(
            tiny(f"storage={store_server.url(prefix)}", *SHORT),
            tmp_path / "run",
            on_step=lambda step, _: steps.append(step),
        )
    assert not steps
