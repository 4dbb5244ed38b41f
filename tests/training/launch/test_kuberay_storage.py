"""`trainfleet runs --storage` of a run on KubeRay where its cluster cannot be asked, and a stop that no pod
accepts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_api import JOB, JOBS, MAPS, FakeApi
from tests.training.launch.kuberay_follower import cluster_of
from trainfleet.errors import InputError, MissingToolError, Problem
from trainfleet.training.launch.control import SAVED, RunRef
from trainfleet.training.launch.kuberay import runs
from trainfleet.training.launch.kuberay.control import KubeRayControl
from trainfleet.training.launch.remote.kubernetes import ApiError
from trainfleet.training.launch.remote.ray_job import RayJob
from trainfleet.training.launch.remote.where import Where
from trainfleet.training.stores import open_store
from trainfleet.training.stores.lease import Lease

LAUNCH = {"at": "2026-11-01T09:50:00+00:00", "on": "kuberay", "context": "of-ada", "starts_before": 0}


class Unreachable:
    """A cluster that answers nothing."""

    def get(self, kind: str, name: str) -> Any:
        raise ApiError(0, "", "no route to host")


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """A run that trains, and that ends when it is asked to."""
    folder = tmp_path / "night"
    folder.mkdir()
    record = {"name": "night", "status": "running", "starts": [{"at": LAUNCH["at"]}], "launches": [LAUNCH]}
    (folder / "run.json").write_text(json.dumps(record))
    lease, over = Lease(open_store(str(folder)), "launch"), threading.Event()
    lease.acquire(lambda *_: None)

    def train() -> None:
        while not over.wait(0.05) and not lease.stop_requested:
            pass
        lease.release()

    thread = threading.Thread(target=train)
    thread.start()
    yield folder
    over.set()
    thread.join()


def control(run_dir: Path, *, by_storage: bool) -> KubeRayControl:
    return KubeRayControl(RunRef("night", str(run_dir), LAUNCH, by_storage=by_storage))


@pytest.mark.parametrize(
    "error",
    [
        InputError("unknown cluster", [Problem("--context", "`of-ada` is not in the kubeconfig")]),
        MissingToolError("the package `kubernetes` is not installed"),
        None,
    ],
    ids=["no-context", "no-package", "no-answer"],
)
def test_a_named_storage_is_enough_where_the_cluster_cannot_be_asked(
    error: Exception | None, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(_: Where) -> Any:
        if error is not None:
            raise error
        return Unreachable()

    monkeypatch.setattr(Where, "connect", connect)
    found = control(run_dir, by_storage=True)
    assert found.attach_request(tmp_path, as_json=False) is None
    assert found.stop(now=False, within_s=60, report=lambda _: None) == SAVED


def test_without_a_named_storage_the_cluster_is_asked(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(_: Where) -> Any:
        raise InputError("unknown cluster", [])

    monkeypatch.setattr(Where, "connect", connect)
    with pytest.raises(InputError, match="unknown cluster"):
        control(run_dir, by_storage=False).stop(now=False, within_s=60, report=lambda _: None)


def test_a_run_that_another_cluster_of_this_name_does_not_have_is_asked_through_its_storage(
    run_dir: Path, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many clusters have the same name for their context, such as `default`."""
    monkeypatch.setattr(Where, "connect", lambda _: cluster_of(api))
    monkeypatch.setattr("trainfleet.training.launch.kuberay.control.is_remote", lambda _: True)
    found = control(run_dir, by_storage=True)
    assert found.stop(now=False, within_s=60, report=lambda _: None) == SAVED


def test_a_run_whose_pods_cannot_be_asked_is_asked_through_its_storage(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "ask_ranks", lambda *_: 0)
    api.objects[JOB] = {"metadata": {"name": "tf-lm-tiny"}, "status": {"jobDeploymentStatus": "Running"}}
    job = RayJob(entrypoint="python", env={}, metadata={}).model_dump_json()
    api.objects[JOB.replace(JOBS, MAPS)] = {"metadata": {"name": "tf-lm-tiny"}, "data": {"job.json": job}}
    cluster = cluster_of(api)
    found = runs.find(cluster, "lm-tiny")

    def ask() -> bool:
        api.objects[JOB]["status"]["jobDeploymentStatus"] = "Complete"
        return True

    assert runs.stop(cluster, found, ask, now=False, within_s=20, report=lambda _: None) == "saved and ended"
    assert JOB not in api.objects
