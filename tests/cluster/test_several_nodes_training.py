"""A run on three nodes, one worker on each, has the losses of the same run without Ray."""

from __future__ import annotations

import json

import pytest

from tests.cluster.launches import Place, document, losses, place
from tests.cluster.several_nodes import cluster

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1800)]
__all__ = ["cluster", "place"]
SPREAD = {
    "topologyKey": "kubernetes.io/hostname",
    "maxSkew": 1,
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"ray.io/node-type": "worker"}},
}
THREE = ("scaling.workers=3", "batch.global_batch=24")


def worker_nodes(place: Place) -> dict[str, str]:
    """The node of each worker pod that was scheduled in the namespace, also of those that are gone."""
    events = json.loads(place.kubectl("get", "events", "-o", "json"))["items"]
    assigned = [row["message"].split() for row in events if row.get("reason") == "Scheduled"]
    return {words[2]: words[-1] for words in assigned if "worker" in words[2]}


def test_ddp_over_three_nodes_has_the_losses_of_torchrun(place: Place) -> None:
    template = place.folder / "spread.json"
    template.write_text(json.dumps({"workers": {"spec": {"topologySpreadConstraints": [SPREAD]}}}))
    there = place.launch("spread", *THREE, "--pod-template", str(template), "--json")
    assert there.returncode == 0, there.stderr
    nodes = worker_nodes(place)
    assert len(nodes) == 3
    assert set(nodes.values()) == {node.name for node in place.cluster.state.nodes}
    here = place.call(
        *("launch", "lm-tiny", "--on", "torchrun", "--run", "spread-here"),
        *("--storage", str(place.folder / "here"), "--json", place.data, *THREE),
    )
    assert here.returncode == 0, here.stderr
    one, other = document(there.stdout), document(here.stdout)
    assert one["step"] == other["step"] == 40
    assert losses(one) == losses(other)
    place.clean()
