"""Kueue's controller places the workers of a run in the topology of a pool. The pool's nodes are simulated: pods
are scheduled to them and run nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.cluster.conftest import Cluster, cluster_with_queue, trainfleet, until
from tests.cluster.launches import Launch, Place, fill, launched
from trainfleet.infra.outputs.contract import load_outputs
from trainfleet.local_cluster import fake_nodes
from trainfleet.local_cluster.store import gateway, grant_access
from trainfleet.local_cluster.stores.servers import KEY, SECRET

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1800)]
NAME = "topology"
BLOCK = "example.com/block"
NODES = {"alone-1": "one", "pair-1": "two", "pair-2": "two", "alone-2": "three"}
"""The simulated nodes, each of 8 GPUs, and their blocks."""
POOL = (
    "gpu_pools=[{{name: gpus, accelerator: H100, per_node: 8, min_nodes: 4, max_nodes: 4, "
    "labels: {{example.com/pool: gpus}}, topology: {}}}]"
)
STORE_PORT = 9000
"""`storage.port` of the stack `local`; its network policies admit no other."""


@pytest.fixture(scope="module")
def topology_cluster() -> Iterator[Cluster]:
    with cluster_with_queue(NAME) as here:
        yield here


def applied(cluster: Cluster, topology: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The stack `local` with a pool of a topology, and the pool's nodes."""
    folder = tmp_path_factory.mktemp("topology")
    (folder / "store").mkdir()
    state, file = cluster.state, folder / "local.json"
    stack = ("rehearse", "local", "--on-cluster", state.name)
    with gateway(str(state.host_address), folder / "store", (KEY, SECRET), STORE_PORT) as store:
        fill(store.folder)
        grant_access(state, "training", store)
        settings = ("--set", "queue.enabled=true", "--set", POOL.format(topology))
        done = trainfleet(*stack, "--leave", "--outputs", str(file), *settings)
        assert done.returncode == 0, done.stdout + done.stderr
        done = trainfleet("cluster", "up", "--name", state.name, "--no-image", "--nodes-like", str(file))
        assert done.returncode == 0, done.stderr
        cluster.kubectl("delete", "node", "--selector", fake_nodes.LABEL)
        of = load_outputs(file)
        (like,) = fake_nodes.of_pool(of, of.pools[0])
        nodes = [
            replace(like, name=name, labels=like.labels | {BLOCK: block}) for name, block in NODES.items()
        ]
        fake_nodes.apply(state, nodes)
        yield Place(cluster, store, folder, "training")
        assert trainfleet(*stack, "--clean-up").returncode == 0
        cluster.kubectl("delete", "node", "--selector", fake_nodes.LABEL)
        cluster.kubectl("delete", "namespace", "training")


@pytest.fixture
def required(topology_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    topology = f"{{levels: [{BLOCK}], required: {BLOCK}}}"
    yield from applied(topology_cluster, topology, tmp_path_factory)


@pytest.fixture
def preferred(topology_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from applied(topology_cluster, f"{{levels: [{BLOCK}]}}", tmp_path_factory)


def workers_of(place: Place, run: str) -> list[str]:
    """The nodes of a run's workers; an empty name for one without a node."""
    selector = f"trainfleet.io/run={run},ray.io/node-type=worker"
    pods = json.loads(place.kubectl("get", "pod", "-l", selector, "-o", "json"))["items"]
    return sorted(pod["spec"].get("nodeName", "") for pod in pods)


def sized(nodes: int) -> tuple[str, ...]:
    """The settings of a run on whole nodes."""
    return (f"scaling.workers={8 * nodes}", "scaling.use_gpu=true", f"batch.global_batch={32 * nodes}")


def placed(place: Place, launch: Launch, run: str, nodes: int) -> list[str]:
    """Wait until each worker of a run has a node."""

    def found() -> list[str]:
        assert not launch.ended, launch.output
        names = workers_of(place, run)
        return names if len(names) == nodes and all(names) else []

    names: list[str] = until(found, f"{nodes} nodes for {run}", 180)
    return names


def delete(place: Place, run: str) -> None:
    """Delete a run, and its pods at once: nothing runs on a simulated node that could end in its grace period."""
    place.kubectl("delete", "rayjob", f"tf-{run}", "--wait=false")
    at_once = ("delete", "pod", "-l", f"trainfleet.io/run={run}", "--grace-period=0", "--force")

    def gone() -> bool:
        place.kubectl(*at_once, check=False)
        return not workers_of(place, run)

    until(gone, f"no worker of {run}")


def test_a_run_is_admitted_only_to_nodes_of_one_block(required: Place) -> None:
    stack = required.folder / "local.json"
    with (
        launched(required, "one", *sized(2), stack=stack) as one,
        launched(required, "other", *sized(2), stack=stack) as other,
    ):
        # The first to be admitted has the only pair; the two other nodes are in different blocks.
        launches = {"one": one, "other": other}

        def admitted() -> str:
            assert not any(launch.ended for launch in launches.values()), one.output + other.output
            return next((run for run in launches if workers_of(required, run)), "")

        first: str = until(admitted, "a run")
        assert placed(required, launches[first], first, 2) == ["pair-1", "pair-2"]
        second = "other" if first == "one" else "one"
        until(lambda: "topology" in launches[second].output, f"why {second} waits")
        assert not workers_of(required, second)
        delete(required, first)
        assert placed(required, launches[second], second, 2) == ["pair-1", "pair-2"]
        delete(required, second)


def test_a_larger_run_uses_several_blocks_where_one_is_only_preferred(preferred: Place) -> None:
    stack = preferred.folder / "local.json"
    with launched(preferred, "small", *sized(2), stack=stack) as small:
        assert placed(preferred, small, "small", 2) == ["pair-1", "pair-2"]
        with launched(preferred, "rest", *sized(2), stack=stack) as rest:
            assert placed(preferred, rest, "rest", 2) == ["alone-1", "alone-2"]
            delete(preferred, "rest")
            delete(preferred, "small")
