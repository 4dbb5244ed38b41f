"""One recipe on three platforms of the local cluster at once, each with its namespace, quota, account and folder
of the store. One run is lost midway: the others finish, and the same command resumes it.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, until
from tests.cluster.launches import RESTRICTED, Place, document, place
from trainfleet.infra.outputs.contract import partly_known
from trainfleet.local_cluster.images import LOCAL
from trainfleet.local_cluster.stores.servers import KEY, SECRET
from trainfleet.training.launch.remote.ray_job import RAY_VERSION

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]
__all__ = ["place"]
NAMES = ("north", "south", "west")
QUOTA = {"requests.cpu": "1", "requests.memory": "6Gi", "count/pods": "3"}
"""Enough for one run: its head, its worker and its submitter."""
SMALL = ("scaling.workers=1", "scaling.cpus_per_worker=0.05")
"""Three runs must fit two CPUs: a head requests half of one. Without a queue, runs that do not fit wait for one
another."""
STEPS = ("steps=150", "log.every=5", "checkpoint.every=25", "validation.every=150")


def platform(cluster: Cluster, place: Place, name: str) -> Path:
    """A platform of its own: namespace, account, quota and keys. Returns the file with its outputs."""
    made = {"namespace": name}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": f"trainer-{name}", **made}},
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "one-run", **made},
            "spec": {"hard": QUOTA},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s3-keys", **made},
            "stringData": {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET},
        },
    )
    outputs = partly_known(
        name,
        "local",
        kube_context=cluster.state.context,
        kubeconfig="{}",
        namespace=name,
        service_account=f"trainer-{name}",
        bucket_url=f"{place.store.url}/{name}",
        storage_secret="s3-keys",
        image=LOCAL,
        ray_version=RAY_VERSION,
    )
    file = place.folder / f"{name}.json"
    file.write_text(outputs.model_dump_json())
    return file


@pytest.fixture(scope="module")
def platforms(cluster: Cluster, place: Place) -> Iterator[list[Path]]:
    yield [platform(cluster, place, name) for name in NAMES]
    for name in NAMES:
        cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def arguments(place: Place, files: list[Path], run: str = "night") -> list[str]:
    clusters = ",".join(str(each) for each in files)
    return [
        "launch",
        "lm-tiny",
        "--on",
        "kuberay",
        "--clusters",
        clusters,
        "--run",
        run,
        *SMALL,
        *STEPS,
        place.data,
    ]


def status(found: dict[str, Any]) -> dict[str, str]:
    return {each["cluster"]: each["status"] for each in found["clusters"]}


def test_three_platforms_train_at_once_and_a_lost_run_is_resumed(
    cluster: Cluster, place: Place, platforms: list[Path]
) -> None:
    launch = place.begin("night", *arguments(place, platforms))
    try:
        until(lambda: launch.ended or "[south] step  50" in launch.output, "step 50 of south", 900)
        assert not launch.ended, launch.output
        cluster.kubectl("-n", "south", "delete", "rayjob", "tf-night-south", "--wait=false")
        assert launch.process.wait(900) == 1, launch.output
    finally:
        launch.kill()
    state = place.folder / "runs" / "night.clusters" / "clusters.json"
    assert status(json.loads(state.read_text())) == {
        "north": "finished",
        "south": "failed",
        "west": "finished",
    }
    assert "1 of 3 runs failed" in launch.output

    again = place.call(*arguments(place, platforms), "--json")
    assert again.returncode == 0, again.stderr
    found = document(again.stdout)
    assert status(found) == dict.fromkeys(NAMES, "finished")
    by_name = {each["cluster"]: each for each in found["clusters"]}
    assert by_name["south"]["resumed_from"] >= 25
    losses = {name: each["metrics"]["test/loss"] for name, each in by_name.items()}
    assert losses["south"] == pytest.approx(losses["north"], abs=1e-6)
    assert losses["west"] == pytest.approx(losses["north"], abs=1e-6)
    for name in NAMES:
        assert (place.store.folder / "runs" / name / f"night-{name}" / "run.json").is_file()
        until(
            lambda name=name: not cluster.kubectl("-n", name, "get", "pods,rayjobs", "-o", "name"), name, 180
        )
    page = Path(found["report"]).read_text()
    assert all(f"night-{name}" in page for name in NAMES)


@pytest.mark.deep
def test_detached_runs_are_stopped_by_the_name_of_the_group(
    cluster: Cluster, place: Place, platforms: list[Path]
) -> None:
    left = place.call(*arguments(place, platforms, "day"), "steps=20000", "--detach", "--json")
    assert left.returncode == 0, left.stderr
    assert status(document(left.stdout)) == dict.fromkeys(NAMES, "detached")
    stopped = place.call("runs", "stop", "day", "--json")
    assert stopped.returncode == 0, stopped.stderr
    assert [each["run"] for each in document(stopped.stdout)["runs"]] == [f"day-{name}" for name in NAMES]
    for name in NAMES:
        until(
            lambda name=name: not cluster.kubectl("-n", name, "get", "pods,rayjobs", "-o", "name"), name, 180
        )


def nothing_runs(cluster: Cluster) -> None:
    for name in NAMES:
        until(
            lambda name=name: not cluster.kubectl("-n", name, "get", "pods,jobs,rayjobs", "-o", "name"),
            name,
            180,
        )


def listed(place: Place, files: list[Path], **overrides: str) -> str:
    """A list of the platforms with changes of the recipe for some of them, by name."""
    entries = [
        {"stack": str(file), "overrides": [overrides[file.stem]] if file.stem in overrides else []}
        for file in files
    ]
    written = place.folder / "clusters.yaml"
    written.write_text(json.dumps(entries))
    return str(written)


def stored_files(place: Place) -> set[Path]:
    """The objects in the store, without the gateway's own files."""
    files = {each for each in place.store.folder.rglob("*") if each.is_file()}
    return {each for each in files if ".vgwlocks" not in each.parts}


def test_problems_on_several_platforms_are_one_message_and_nothing_is_left(
    cluster: Cluster, place: Place, platforms: list[Path]
) -> None:
    """South has keys that its store rejects, and west data that does not exist. North is valid."""
    stored = stored_files(place)
    wrong = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": "another"}
    keys = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3-keys", "namespace": "south"}}
    command = arguments(place, platforms, "checked")
    nowhere = f"workload.data.source={place.store.url}/nowhere"
    command[command.index("--clusters") + 1] = listed(place, platforms, west=nowhere)
    cluster.apply({**keys, "stringData": wrong})
    try:
        done = place.call(*command)
    finally:
        cluster.apply({**keys, "stringData": wrong | {"AWS_SECRET_ACCESS_KEY": SECRET}})
    assert done.returncode == 2, done.stdout + done.stderr
    assert "not every cluster can run this; nothing was started" in done.stderr
    assert "south: " in done.stderr
    assert "west: " in done.stderr
    assert f"{place.store.url}/nowhere" in done.stderr
    assert "north: " not in done.stderr
    assert "[north] the workload is valid" in done.stdout
    assert not list((place.folder / "runs").glob("checked*"))
    assert stored_files(place) == stored
    nothing_runs(cluster)


def test_ctrl_c_during_the_checks_leaves_nothing(
    cluster: Cluster, place: Place, platforms: list[Path]
) -> None:
    launch = place.begin("checks", *arguments(place, platforms, "checks"))
    try:
        until(lambda: launch.ended or "checking the workload in a pod" in launch.output, "a check", 300)
        assert not launch.ended, launch.output
        launch.process.send_signal(signal.SIGINT)
        assert launch.process.wait(120) == 130, launch.output
    finally:
        launch.kill()
    assert "nothing was started" in launch.output
    assert not list((place.folder / "runs").glob("checks*"))
    nothing_runs(cluster)
