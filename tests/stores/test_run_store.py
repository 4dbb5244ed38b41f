"""Runs that are found, read and stopped through their bucket alone."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.stores.running import Running
from trainfleet.errors import InputError
from trainfleet.training.launch import run_record
from trainfleet.training.launch.control import RunControl
from trainfleet.training.launch.find_run import find_run
from trainfleet.training.launch.local_control import LocalControl
from trainfleet.training.launch.ray_up.checks import require_free
from trainfleet.training.launch.remote.where import Where
from trainfleet.training.launch.sky.control import SkyControl
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.listing import list_folder, list_storage
from trainfleet.training.runs.storage import RunStorage
from trainfleet.training.trainer.context import RunResult

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
LAUNCH = {"at": "2026-11-01T09:50:00+00:00", "owner": "ada", "starts_before": 0, "host": "elsewhere"}
kinds = pytest.mark.parametrize(
    "store_server",
    ["s3", *(pytest.param(kind, marks=pytest.mark.deep) for kind in ("gs", "az"))],
    indirect=True,
)


@kinds
def test_a_launch_is_listed_before_and_after_its_first_step(
    tmp_path: Path, tiny: Make, run: Run, store_server: Running, prefix: str
) -> None:
    url = store_server.url(prefix)
    recipe = tiny(f"storage={url}", "steps=4", "optimizer.warmup=1")
    place = {"cluster": "tf-lm-tiny", "managed": False, "contexts": {"east": "training"}}
    storage = RunStorage(recipe, tmp_path / "here", lambda *_: None)
    storage.record_launch(LAUNCH | {"on": "sky", "place": place})
    storage.require_empty()
    (waiting,) = list_storage(url)
    assert (waiting.name, waiting.state, waiting.launcher, waiting.owner) == (
        "lm-tiny",
        "not started",
        "sky",
        "ada",
    )
    run(recipe, tmp_path / "there")
    (finished,) = list_storage(url)
    assert (finished.state, finished.step, finished.steps) == ("finished", 4, 4)
    found = find_run("lm-tiny", Where(), url)
    assert isinstance(found, SkyControl)
    assert found.contexts == {"east": "training"}
    rows = [line["row"]["step"] for line in RunControl(found.ref).lines(follow=True) if "row" in line]  # type: ignore[index]
    assert rows == [1, 2, 3, 4]


@kinds
def test_a_run_is_stopped_through_its_bucket(
    tmp_path: Path, tiny: Make, run: Run, store_server: Running, prefix: str
) -> None:
    url = store_server.url(prefix)
    recipe = tiny(f"storage={url}", "steps=1000000", "validation.every=1000000", "checkpoint.every=50")
    RunStorage(recipe, tmp_path, lambda *_: None).record_launch(LAUNCH | {"on": "torchrun"})
    began, how = threading.Event(), []

    def stop() -> None:
        began.wait(120)
        control = find_run("lm-tiny", Where(), url)
        assert isinstance(control, LocalControl)
        how.append(control.stop(now=False, within_s=120, report=lambda _: None))

    stopper = threading.Thread(target=stop)
    stopper.start()
    result = run(recipe, tmp_path / "there", on_step=lambda *_: began.set())
    stopper.join(150)
    assert (result.status, how) == ("stopped", ["saved and ended"])
    (found,) = list_storage(url)
    assert (found.state, found.step) == ("stopped", result.step)


@pytest.mark.parametrize("store_server", ["s3"], indirect=True)
def test_runs_elsewhere_are_listed_as_their_bucket_tells(
    tmp_path: Path, tiny: Make, run: Run, store_server: Running, prefix: str
) -> None:
    recipe = tiny(f"storage={store_server.url(prefix)}", "steps=2", "optimizer.warmup=1")
    folder = tmp_path / "runs" / "lm-tiny"
    folder.mkdir(parents=True)
    launch = LAUNCH | {"on": "kuberay", "storage": recipe.home_url(), "status": "detached"}
    (folder / "run.json").write_text(json.dumps({"launches": [launch]}))
    (waiting,) = list_folder(tmp_path / "runs")
    assert (waiting.state, waiting.home) == ("not started", recipe.home_url())
    run(recipe, tmp_path / "there")
    (finished,) = list_folder(tmp_path / "runs")
    assert (finished.state, finished.step, finished.launcher) == ("finished", 2, "kuberay")
    store_server.proxy.fail(fault="status", times=100, status=403)
    (unknown,) = list_folder(tmp_path / "runs")
    assert unknown.state == "unknown"
    assert unknown.message


@pytest.mark.parametrize(
    ("launch", "free"),
    [
        ({}, False),
        ({"status": "detached"}, False),
        ({"status": "failed"}, True),
        ({"at": "2026-11-01T09:50:00+00:00"}, True),  # longer ago than it may wait for its machines
        ({"host": platform.node()}, False),
        ({"host": platform.node(), "pid_started": 1.0}, True),  # its launcher was killed
    ],
)
@pytest.mark.parametrize("store_server", ["s3"], indirect=True)
def test_ray_up_starts_no_machines_while_another_launch_of_the_run_may_start_them(
    launch: dict[str, Any], free: bool, tmp_path: Path, tiny: Make, store_server: Running, prefix: str
) -> None:
    recipe = tiny(f"storage={store_server.url(prefix)}")
    two_minutes_ago = (datetime.now(UTC) - timedelta(minutes=2)).isoformat(timespec="seconds")
    now = LAUNCH | {
        "at": two_minutes_ago,
        "on": "ray-up",
        "pid": os.getpid(),
        "pid_started": psutil.Process().create_time(),
    }
    RunStorage(recipe, tmp_path, lambda *_: None).record_launch(now | launch)
    expected = "ada launched it on .* 2m0.s ago, and may be starting its machines"
    with contextlib.nullcontext() if free else pytest.raises(InputError, match=expected):
        require_free(recipe.home_url(), within_s=1800)


@kinds
def test_a_rejected_launch_leaves_the_record_of_the_one_that_trains(
    tmp_path: Path, tiny: Make, store_server: Running, prefix: str
) -> None:
    """Its launcher has stored its own record before the ranks see that another launch holds the run."""
    recipe = tiny(f"storage={store_server.url(prefix)}")
    trains, second = (RunStorage(recipe, tmp_path / name, lambda *_: None) for name in ("ada", "bob"))
    trains.record_launch(LAUNCH)
    trains.enter("ada")
    try:
        bob = LAUNCH | {"owner": "bob", "at": "2026-11-01T10:00:00+00:00"}
        assert run_record.record_for_others(second, [bob]) == ""
        with pytest.raises(InputError) as rejected:
            second.enter("bob")
        reported = run_record.Reported(error=rejected.value)
        assert not run_record.store_end(second, [bob | {"status": "failed"}], reported)
        assert json.loads(trains.open_home().read("launch.json")) == LAUNCH
        # The launch that trains has stored its end meanwhile.
        run_record.record_for_others(second, [bob])
        ended = LAUNCH | {"status": "finished"}
        assert run_record.store_end(trains, [ended], run_record.Reported())
        second.restore_launch()
        assert json.loads(trains.open_home().read("launch.json")) == ended
    finally:
        trains.leave()
