"""Machines are sized for the processes of Ray that build batches, and ranks leave them their CPUs."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from tests.training.launch import test_ray_up_cluster_yaml as ray_up
from tests.training.launch.kuberay_launches import run_spec
from trainfleet.training.launch.kuberay.manifest import ray_job, submitted_job
from trainfleet.training.launch.kuberay.worker_size import worker_size
from trainfleet.training.launch.ray_up.cluster_yaml import cpus
from trainfleet.training.launch.sky.pod_size import pod_size
from trainfleet.training.recipe.load import load_recipe

FOUR = ("scaling.workers=4", "batch.global_batch=16", "scaling.cpus_per_worker=0.5")
THREADS = ("data_loading.workers=3",)
RAY = ("data_loading.engine=ray", "data_loading.workers=3", "data_loading.cpus_per_worker=1.25")
MORE = 4 * 3 * 1.25


@pytest.mark.parametrize("gpu", ["true", "false"])
def test_a_pod_of_kuberay_holds_its_ranks_and_their_processes(gpu: str) -> None:
    where: dict[str, str] = (
        {"pool": "l4"} if gpu == "true" else {"context": "kind", "namespace": "t", "image": "me/t:1"}
    )
    overrides = (*FOUR, f"scaling.use_gpu={gpu}")
    threads, ray = (run_spec(*overrides, *each, **where) for each in (THREADS, RAY))
    without, with_processes = (worker_size(each.recipe, each.pool, 4) for each in (threads, ray))
    assert with_processes.cpus - without.cpus == MORE
    assert with_processes.memory_gib - without.memory_gib == 4 * 3
    group = ray_job(ray)["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    have = Decimal(group["rayStartParams"]["num-cpus"])
    rank = Decimal(submitted_job(ray).env["TRAINFLEET_RANK_CPUS"])
    processes = 3 * Decimal("1.25")
    assert rank >= Decimal("0.5")
    assert ray.per_pod * (rank + processes) <= have
    assert have - ray.per_pod * (rank + processes) < Decimal("0.001"), "no CPU is left over"


def test_a_pod_of_sky_and_a_host_of_ray_up_too() -> None:
    sizes = [pod_size(load_recipe("lm-tiny", [*FOUR, *each]), 1) for each in (THREADS, RAY)]
    assert sizes[1].cpus - sizes[0].cpus == MORE
    assert sizes[1].memory_gib - sizes[0].memory_gib == 4 * 3
    hosts = [ray_up.run_spec("local", *FOUR, *each) for each in (THREADS, RAY)]
    per_node = hosts[0].per_node
    assert [cpus(each) for each in hosts] == [math.ceil(per_node * each) for each in (0.5, 0.5 + 3 * 1.25)]
