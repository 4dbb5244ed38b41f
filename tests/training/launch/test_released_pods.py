"""A pod that Ray has given up keeps its share of its node until KubeRay's replacement is placed elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.launch.kuberay_launches import run_spec
from tests.training.launch.test_lost_pods import nodes, pod, running
from trainfleet.infra.kubernetes import pod_changes
from trainfleet.training.launch.kuberay.pods import worker_pod
from trainfleet.training.launch.remote.lost_pods import (
    CLUSTER_LABEL,
    RELEASED,
    LostPods,
    is_of,
    is_released,
    release_patch,
    selector,
)
from trainfleet.training.launch.remote.ray_nodes import RayNodes

BOTH, LOST = nodes("10.0.0.1 10.0.0.2"), nodes("10.0.0.1", "10.0.0.2")


class Pods:
    """The pods of a run over time: `one` stays, and the node of `two` is lost."""

    def __init__(self, *, rejected: bool = False) -> None:
        self.now, self.rejected = 0.0, rejected
        self.pods = {name: member(name, address) for name, address in (("one", "1"), ("two", "2"))}
        self.done: list[str] = []
        self.watcher = self.start()

    def start(self) -> LostPods:
        """A process that watches the pods."""
        return LostPods(self._delete, lambda _: None, lambda: self.now, release=self._release)

    def _delete(self, found: Any) -> None:
        self.done.append(f"delete {found['metadata']['name']}")
        del self.pods[found["metadata"]["name"]]

    def _release(self, found: Any) -> bool:
        self.done.append(f"release {found['metadata']['name']}")
        if not self.rejected:
            self.pods[found["metadata"]["name"]]["metadata"]["labels"] |= release_patch(found)["metadata"][
                "labels"
            ]
        return not self.rejected

    def replace(self, *, placed: bool) -> None:
        """Replace the lost pod as KubeRay does."""
        new = self.pods["three"] = member("three", "3", phase="Pending")
        new["spec"] = {"nodeName": "node3"} if placed else {}

    def look(self, at: float, known: RayNodes = LOST) -> list[str]:
        """What is done at a time, in seconds."""
        self.now, self.done = at, []
        self.watcher.look(list(self.pods.values()), known)
        return self.done


def member(name: str, address: str, phase: str = "Running") -> dict[str, Any]:
    """A pod of the cluster `rc`."""
    found = running(name, f"10.0.0.{address}", phase)
    found["metadata"] |= {
        "labels": {"ray.io/cluster": "rc", "app": "kept"},
        "ownerReferences": [{"kind": "RayCluster", "name": "rc"}],
    }
    return found


@pytest.fixture
def released() -> Pods:
    """The lost pod was released at 5 s."""
    pods = Pods()
    assert pods.look(0, BOTH) == []
    assert pods.look(1) == []
    assert pods.look(6) == ["release two"]
    return pods


def test_a_pod_is_kept_until_its_replacement_is_placed(released: Pods) -> None:
    assert released.look(7) == [], "KubeRay has not replaced it yet"
    released.replace(placed=False)
    assert released.look(10) == []
    released.replace(placed=True)
    assert released.look(13) == ["delete two"]
    assert released.look(16) == []


@pytest.mark.parametrize("waiting", [True, False])
def test_a_pod_without_a_placed_replacement_is_deleted_after_a_while(waiting: bool, released: Pods) -> None:
    if waiting:
        released.replace(placed=False)
    assert released.look(35) == []
    assert released.look(36) == ["delete two"]


def test_a_pod_of_which_kubernetes_knows_that_it_is_lost_is_deleted(released: Pods) -> None:
    released.pods["two"]["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z"
    assert released.look(7) == ["delete two"]
    unreleased = Pods()
    unreleased.pods["two"] |= pod("two", deleted="2020-01-01T00:00:00Z")
    assert unreleased.look(0, BOTH) == []
    assert unreleased.look(5, BOTH) == ["delete two"]


def test_a_pod_that_may_not_be_released_is_deleted_at_once() -> None:
    pods = Pods(rejected=True)
    pods.look(0, BOTH)
    pods.look(1)
    assert pods.look(6) == ["release two", "delete two"]


def test_a_pod_that_another_process_has_released_is_deleted_after_a_while(released: Pods) -> None:
    released.replace(placed=True)
    released.watcher = released.start()
    assert released.look(100) == []
    assert released.look(129) == []
    assert released.look(130) == ["delete two"]


def test_a_released_pod_belongs_to_no_cluster_and_is_found_all_the_same(released: Pods) -> None:
    two = released.pods["two"]["metadata"]["labels"]
    assert two == {"ray.io/cluster": "trainfleet.lost", "app": "kept"}
    assert [is_released(each) for each in released.pods.values()] == [False, True]
    assert selector("rc") == "ray.io/cluster in (rc,trainfleet.lost)"
    for name, expected in (("rc", True), ("rc-2", False)):
        assert is_of(name, released.pods["two"]) is expected
    assert is_of("rc", released.pods["one"])


def test_the_policy_of_the_platform_allows_this_release_and_no_other() -> None:
    (rule,) = (rule for rule, what in pod_changes.RULES.items() if what == "labels")
    assert f"key == '{CLUSTER_LABEL}' && variables.after[key] == '{RELEASED}'" in rule


def test_a_worker_avoids_the_nodes_of_released_pods(released: Pods) -> None:
    affinity = worker_pod(run_spec())["spec"]["affinity"]["podAntiAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    selected = term["labelSelector"]["matchLabels"].items()
    avoided = [selected <= each["metadata"]["labels"].items() for each in released.pods.values()]
    assert (avoided, term["topologyKey"]) == ([False, True], "kubernetes.io/hostname")


def test_pods_are_looked_at_more_often_while_one_is_to_be_replaced(released: Pods) -> None:
    assert not Pods().watcher.waiting
    assert released.watcher.waiting
    released.replace(placed=True)
    assert released.look(10) == ["delete two"]
    released.look(11)
    assert not released.watcher.waiting
