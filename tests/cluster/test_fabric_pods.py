"""`trainfleet fabric check` on a real cluster: its pods are admitted, connect, and are gone afterwards.

There are no GPUs here, so gloo measures the ordinary network between two pods.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.conftest import until
from tests.cluster.launches import Place, document, place
from tests.training.launch.kuberay_launches import pool
from trainfleet.infra.outputs.contract import PoolOutput
from trainfleet.local_cluster.images import LOCAL
from trainfleet.training.launch.platform_outputs import external_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
__all__ = ["place"]


def _platform(place: Place) -> Path:
    """A file with the outputs of a platform: a pool that selects this node, and one whose nodes do not exist."""
    found = external_cluster(place.cluster.state.context, place.namespace, LOCAL, f"{place.store.url}/runs")
    pools = [pool("any", per_node=1, node_selector={}, tolerations=[]), pool("absent", per_node=1)]
    outputs = found.model_copy(update={"pools": [PoolOutput.model_validate(each) for each in pools]})
    file = place.folder / "outputs.json"
    file.write_text(outputs.model_dump_json())
    return file


def _check(place: Place, name: str, *more: str) -> list[str]:
    return ["fabric", "check", "--stack", str(_platform(place)), "--pool", name, "--backend", "gloo", *more]


def _nothing_is_left(place: Place) -> None:
    place.clean()
    assert place.names("service", "trainfleet.io/fabric-check") == []


@pytest.mark.slow
def test_two_pods_measure_the_network_between_them_and_are_removed(place: Place) -> None:
    done = place.call(*_check(place, "any", "--json"))
    assert done.returncode == 0, done.stderr
    report = document(done.stdout)
    assert (report["passed"], report["backend"], report["problems"]) == (True, "gloo", [])
    assert report["bus_bandwidth"] > 0
    assert "both pods run; measuring" in done.stderr
    _nothing_is_left(place)


def test_pods_without_a_node_are_reported_and_removed(place: Place) -> None:
    done = place.call(*_check(place, "absent", "--within", "5s"))
    assert done.returncode == 1
    assert "the pods did not get their nodes within" in done.stderr
    assert "lacks the labels asked for" in done.stderr
    _nothing_is_left(place)


def test_an_interrupted_check_removes_its_pods(place: Place) -> None:
    check = place.begin("check", *_check(place, "absent"))
    try:
        until(lambda: check.ended or "lacks the labels asked for" in check.output, "a pod that waits", 120)
        assert check.interrupt() == 130, check.output
    finally:
        check.kill()
    _nothing_is_left(place)
