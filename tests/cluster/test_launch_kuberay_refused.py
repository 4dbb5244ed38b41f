"""What a real cluster cannot run: each is told in one clear message, ends by its time, and leaves nothing
there.
"""

from __future__ import annotations

import subprocess

import pytest
import yaml

from tests.cluster.launches import PROGRAM, Place, place

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
__all__ = ["place"]


@pytest.mark.deep
def test_an_image_that_is_not_there_is_told_and_taken_down(place: Place) -> None:
    done = place.launch("no-image", "--image", "localhost/nobody/has:this")
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1
    assert "localhost/nobody/has:this cannot be pulled" in done.stderr
    place.clean()


def test_a_quota_that_leaves_no_room_is_told_and_ends_by_its_time(place: Place) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": place.namespace},
        "spec": {"hard": {"pods": "0"}},
    }
    place.cluster.apply(quota)
    try:
        done = place.launch("no-room", "--within", "0.4")
    finally:
        place.kubectl("delete", "resourcequota", "none")
    assert done.returncode == 1
    assert "quota `none` allows 0 pods" in done.stdout
    assert "did not get its machines in time" in done.stderr
    place.clean()


@pytest.mark.deep
def test_a_gpu_that_no_node_has_is_told_and_ends_by_its_time(place: Place) -> None:
    done = place.launch("no-gpu", "scaling.use_gpu=true", "--within", "0.5")
    assert done.returncode == 1
    assert "did not get its machines in time" in done.stderr
    assert "too little GPUs (nvidia.com/gpu) free" in done.stderr
    place.clean()


def test_a_second_launch_under_a_name_is_refused_while_the_first_waits(place: Place) -> None:
    first = place.launch("twice", "scaling.use_gpu=true", "--detach")
    assert first.returncode == 0, first.stderr
    second = place.launch("twice")
    assert second.returncode == 2
    assert "this run is already in progress" in second.stderr
    assert "trainfleet runs attach twice" in second.stderr
    stopped = place.call("runs", "stop", "twice")
    assert stopped.returncode == 0, stopped.stderr
    place.clean()


def test_a_namespace_that_is_not_there_is_told(place: Place) -> None:
    done = place.launch("nowhere", "--namespace", "not-there")
    assert (done.returncode, "not-there is not in" in done.stderr) == (2, True), done.stderr


def test_a_secret_that_is_not_there_is_told(place: Place) -> None:
    done = place.launch("no-keys", "--from-secret", "not-made")
    assert (done.returncode, "secrets/not-made: is not in namespace" in done.stderr) == (2, True), done.stderr


def test_a_token_that_the_cluster_does_not_know_is_told(place: Place) -> None:
    known = yaml.safe_load(place.cluster.state.kubeconfig.read_text())
    known["users"][0]["user"] = {"token": "expired"}
    file = place.folder / "expired"
    file.write_text(yaml.safe_dump(known))
    environment = place.env | {"KUBECONFIG": str(file)}
    done = subprocess.run(
        [PROGRAM, *place.arguments("stranger")],
        env=environment,
        cwd=place.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "the cluster does not know you" in done.stderr) == (2, True), done.stderr
