"""Batches of a run that pods without a rank build: `data_loading.engine: ray` on a long-lived Ray cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.conftest import until
from tests.cluster.launches import Place, document, losses, place

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1500)]
__all__ = ["place"]
CLUSTER = "wide"
ONE_RANK = ("scaling.workers=1", "log.every=20", "checkpoint.every=200", "validation.every=2000")
STEPS = "steps=2000"
LOADING = ("data_loading.engine=ray", "data_loading.workers=2", "data_loading.cpus_per_worker=1")
"""A process needs a whole CPU of Ray's, and the pod of the rank has less than one left."""
BUILDER, RANK = "ray::BatchBuilder", "ray::.*RayTrainWo"


def inside(place: Place, pod: str, *command: str) -> str:
    return place.kubectl("exec", pod, "-c", "ray-worker", "--", *command, check=False)


def pods_with(place: Place, process: str) -> set[str]:
    """The workers' pods in which a process runs."""
    found = place.names("pod", f"ray.io/cluster={CLUSTER},ray.io/node-type=worker")
    return {pod for pod in found if inside(place, pod, "pgrep", "-f", process)}


def logged(folder: Path) -> list[float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [round(row["loss"], 6) for row in rows if row["kind"] == "train"]


def test_pods_without_a_rank_build_the_batches_and_a_lost_one_is_replaced(place: Place) -> None:
    three = ("scaling.workers=3", "batch.global_batch=12", "steps=10")
    made = place.launch("makes", "--cluster", CLUSTER, *three)
    assert made.returncode == 0, made.stderr
    fed = place.start("fed", "--cluster", CLUSTER, *ONE_RANK, STEPS, *LOADING)
    try:
        fed.reach(20)
        builders = pods_with(place, BUILDER)
        assert len(builders) == 2
        assert not builders & pods_with(place, RANK)
        killed, deleted = sorted(builders)
        assert not fed.ended
        inside(place, killed, "pkill", "-9", "-f", BUILDER)
        fed.reach(fed.step() + 100)
        assert fed.output.count("a process that builds batches was lost, and is replaced") == 1
        place.kubectl("delete", deleted, "--grace-period=0", "--force")
        until(lambda: fed.output.count("is replaced") == 2, "a batch of the deleted pod is built again", 120)
        assert fed.process.wait(900) == 0, fed.output
    finally:
        fed.kill()
        place.kubectl("delete", "raycluster", CLUSTER, "--ignore-not-found")
    assert "\nresumed:" not in fed.output
    here = place.call(
        *("launch", "lm-tiny", "--on", "torchrun", "--run", "here", "--json", place.data),
        *("--storage", str(place.folder / "here"), *ONE_RANK, STEPS),
    )
    assert here.returncode == 0, here.stderr
    assert logged(place.folder / "runs" / "fed") == losses(document(here.stdout))
    place.clean()
