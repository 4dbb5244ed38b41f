"""Ray's autoscaler (version 2) on a real cluster: a long-lived Ray cluster of an elastic recipe loses its idle
worker, and the next run gets it back. The autoscaler runs in the training image.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.conftest import until
from tests.cluster.launches import LONG, Place, place
from trainfleet.local_cluster.images import LOCAL
from trainfleet.training.runs.reader import read_run

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1500)]
__all__ = ["place"]
CLUSTER = "grows"
APART = "scaling.cpus_per_worker=0.6"
"""Ray counts one CPU in each pod, so that two ranks do not fit into one pod."""
IDLE_S = 5
"""The launcher's five minutes would only make the test longer."""


def workers(place: Place) -> set[str]:
    """The UIDs of the workers' pods that are not being deleted."""
    selector = f"ray.io/cluster={CLUSTER},ray.io/node-type=worker"
    items = json.loads(place.kubectl("get", "pod", "-l", selector, "-o", "json"))["items"]
    return {each["metadata"]["uid"] for each in items if "deletionTimestamp" not in each["metadata"]}


def autoscaler(place: Place) -> dict[str, Any]:
    """The autoscaler's container in the head's pod."""
    selector = f"ray.io/cluster={CLUSTER},ray.io/node-type=head"
    (head,) = json.loads(place.kubectl("get", "pod", "-l", selector, "-o", "json"))["items"]
    (found,) = [each for each in head["spec"]["containers"] if each["name"] == "autoscaler"]
    return dict(found)


def test_an_idle_worker_is_removed_and_the_next_run_gets_it_back(place: Place) -> None:
    elastic = ("scaling.workers=2", "scaling.min_workers=1", "--cluster", CLUSTER, "--json")
    try:
        first = place.launch("first", *elastic)
        assert first.returncode == 0, first.stderr
        container = autoscaler(place)
        assert container["image"] == LOCAL
        made = json.loads(place.kubectl("get", "raycluster", CLUSTER, "-o", "json"))
        assert made["spec"]["autoscalerOptions"]["version"] == "v2"
        idle = {"spec": {"autoscalerOptions": {"idleTimeoutSeconds": IDLE_S}}}
        place.kubectl("patch", "raycluster", CLUSTER, "--type=merge", "-p", json.dumps(idle))
        until(lambda: len(workers(place)) == 1, "one worker is left", 300)
        second = place.begin("second", *place.arguments("second", *elastic, *LONG, APART))
        try:
            until(lambda: second.ended or len(workers(place)) == 2, "the next run has a second worker", 300)
            stored = place.store.folder / "runs" / "runs" / "second"
            until(lambda: second.ended or read_run(stored).get("world_size") == 2, "it trains there", 300)
            assert not second.ended, second.output
            stopped = place.call(
                "runs", "stop", "second", "--storage", f"{place.store.url}/runs", *place.where
            )
            assert stopped.returncode == 0, stopped.stderr
            assert second.process.wait(120) == 130, second.output
        finally:
            second.kill()
    finally:
        # First, because KubeRay does not end the job of a Ray cluster that is gone, and keeps it.
        place.kubectl("delete", "rayjob", "--all", "--timeout=120s", check=False)
        place.kubectl("delete", "raycluster", CLUSTER, "--ignore-not-found")
    place.clean()
