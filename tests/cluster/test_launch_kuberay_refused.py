"""What a real cluster cannot run is reported in one message, ends in its time limit, and leaves nothing."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from tests.cluster.launches import PROGRAM, Place, place

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
__all__ = ["place"]


@pytest.mark.deep
def test_a_missing_image_is_reported_and_the_run_is_removed(place: Place) -> None:
    done = place.launch("no-image", "--image", "localhost/nobody/has:this")
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1
    assert "localhost/nobody/has:this cannot be pulled" in done.stderr
    place.clean()


@pytest.mark.slow
def test_an_exhausted_quota_is_reported_and_the_launch_times_out(place: Place) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": place.namespace},
        "spec": {"hard": {"pods": "0"}},
    }
    place.cluster.apply(quota)
    try:
        done = place.launch("no-capacity", "--within", "0.4")
    finally:
        place.kubectl("delete", "resourcequota", "none")
    assert done.returncode == 1
    assert "quota `none` allows 0 pods" in done.stdout
    assert "did not get its machines in time" in done.stderr
    place.clean()


@pytest.mark.deep
def test_a_missing_gpu_is_reported_and_the_launch_times_out(place: Place) -> None:
    done = place.launch("no-gpu", "scaling.use_gpu=true", "--within", "0.5")
    assert done.returncode == 1
    assert "did not get its machines in time" in done.stderr
    assert "too little free GPUs (nvidia.com/gpu)" in done.stderr
    place.clean()


@pytest.mark.slow
def test_a_second_launch_of_a_name_is_refused_while_the_first_waits(place: Place) -> None:
    first = place.launch("twice", "scaling.use_gpu=true", "--detach")
    assert first.returncode == 0, first.stderr
    second = place.launch("twice")
    assert second.returncode == 2
    assert "this run is already in progress" in second.stderr
    assert "trainfleet runs attach twice" in second.stderr
    stopped = place.call("runs", "stop", "twice")
    assert stopped.returncode == 0, stopped.stderr
    place.clean()


def test_a_missing_namespace_is_reported(place: Place) -> None:
    done = place.launch("nowhere", "--namespace", "not-there")
    assert (done.returncode, "not-there is not in" in done.stderr) == (2, True), done.stderr


def test_a_missing_secret_is_reported(place: Place) -> None:
    done = place.launch("no-keys", "--from-secret", "not-made")
    assert (done.returncode, "secrets/not-made: is not in namespace" in done.stderr) == (2, True), done.stderr


def test_an_invalid_token_is_reported(place: Place) -> None:
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
    assert (done.returncode, "the cluster rejects your login" in done.stderr) == (2, True), done.stderr
