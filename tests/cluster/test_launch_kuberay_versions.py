"""An API server without KubeRay or with older definitions is reported before any object is created."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, trainfleet, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
NAME = "older"


@pytest.fixture(scope="module")
def here() -> Iterator[Cluster]:
    """A cluster of its own; the tests break its definitions one after another."""
    trainfleet("cluster", "down", "--name", NAME)
    done = trainfleet("cluster", "up", "--name", NAME, "--no-image")
    assert done.returncode == 0, done.stderr
    yield Cluster(NAME, trainfleet)
    trainfleet("cluster", "down", "--name", NAME)


def launch(here: Cluster) -> subprocess.CompletedProcess[str]:
    where = (
        "--context",
        here.state.context,
        "--namespace",
        "default",
        "--image",
        "localhost/trainfleet:local",
        "--storage",
        "s3://runs",
    )
    return trainfleet(
        "launch", "lm-tiny", "--on", "kuberay", *where, "--run", "any", KUBECONFIG=str(here.state.kubeconfig)
    )


def definitions(here: Cluster) -> list[dict[str, Any]]:
    found = json.loads(here.kubectl("get", "customresourcedefinitions", "-o", "json"))["items"]
    return [each for each in found if each["spec"]["group"] == "ray.io"]


def change(here: Cluster, edit: Callable[[dict[str, Any]], None]) -> None:
    for each in definitions(here):
        for version in each["spec"]["versions"]:
            edit(version)
        here.kubectl("replace", "-f", "-", given=json.dumps(each))


def assert_reported(here: Cluster, *words: str) -> None:
    def reported() -> bool:
        done = launch(here)
        return (
            done.returncode == 3
            and done.stderr.count("error:") == 1
            and all(word in done.stderr for word in words)
        )

    until(reported, f"a launch reports {' and '.join(words)}", 60)
    assert not here.kubectl(
        "get",
        "configmaps,pods",
        "-n",
        "default",
        "-l",
        "app.kubernetes.io/managed-by=trainfleet",
        "-o",
        "name",
    ).strip()


def test_definitions_without_a_required_field_are_reported(here: Cluster) -> None:
    def older(version: dict[str, Any]) -> None:
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        spec.pop("preRunningDeadlineSeconds", None)

    change(here, older)
    assert_reported(here, "unsupported KubeRay version", "preRunningDeadlineSeconds", "KubeRay 1.6 or newer")


def test_definitions_of_another_version_are_reported(here: Cluster) -> None:
    def renamed(version: dict[str, Any]) -> None:
        version["served"] = version["name"] != "v1"

    change(here, renamed)
    assert_reported(here, "unsupported KubeRay version", "v1alpha1, not v1")


def test_a_cluster_without_kuberay_is_reported(here: Cluster) -> None:
    names = [each["metadata"]["name"] for each in definitions(here)]
    here.kubectl("delete", "customresourcedefinitions", *names)
    assert_reported(here, "this cluster has no KubeRay", "helm install kuberay-operator")
