"""What outlives a run on a real cluster: a long-lived Ray cluster, and a model that is served."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import until
from tests.cluster.launches import Place, document, place

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1500)]
__all__ = ["place"]
CLUSTER, FIRST = "stays", "first"


@pytest.fixture(scope="module")
def trained(place: Place) -> Iterator[str]:
    """A run on a long-lived Ray cluster that it created."""
    done = place.launch(FIRST, "--cluster", CLUSTER, "--json")
    assert done.returncode == 0, done.stderr
    assert document(done.stdout)["step"] == 40
    yield f"{place.store.url}/runs/{FIRST}"
    place.kubectl("delete", "raycluster", CLUSTER, "--ignore-not-found", "--wait=false")


def test_a_second_run_reuses_a_long_lived_cluster(place: Place, trained: str) -> None:
    def pods() -> list[str]:
        found = json.loads(place.kubectl("get", "pod", "-l", f"ray.io/cluster={CLUSTER}", "-o", "json"))[
            "items"
        ]
        return [
            f"{pod['metadata']['uid']} {pod['status']['containerStatuses'][0]['restartCount']}"
            for pod in found
        ]

    before = pods()
    again = place.launch("second", "--cluster", CLUSTER, "steps=20", "--json")
    assert again.returncode == 0, again.stderr
    assert document(again.stdout)["step"] == 20
    assert len(before) == 3
    assert pods() == before
    assert not place.names("rayjob")
    place.kubectl("delete", "raycluster", CLUSTER)
    place.clean()


def test_a_trained_model_is_served_and_answers(place: Place, trained: str) -> None:
    made = place.call("serve", trained, "--on", "kuberay", *place.reached(), "--name", "model", "--json")
    assert made.returncode == 0, made.stderr
    assert document(made.stdout)["address"] == f"http://model-serve-svc.{place.namespace}:8000"
    try:
        address = until(
            lambda: place.kubectl(
                "get", "service", "model-serve-svc", "-o", "jsonpath={.spec.clusterIP}", check=False
            ),
            "the service",
            400,
        )
        asked = urllib.request.Request(
            f"http://{address}:8000/predict", json.dumps({"rows": [{"text": "def main("}]}).encode()
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert len(json.loads(answer.read())["predictions"]) == 1
    finally:
        place.kubectl("delete", "rayservice", "model", "--wait=false")
    place.clean()
