"""Whether a context can be used, and what the pods of a run wait for, from a server that answers as
Kubernetes does.
"""

from __future__ import annotations

import pytest

from tests.training.launch.fake_api import NAMESPACE, PODS, FakeApi
from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster
from trainfleet.training.launch.remote.platform_objects import PlatformObject
from trainfleet.training.launch.sky.pods import (
    IDLE,
    SKY_HEAD_LABEL,
    ask_to_stop,
    context_problem,
    idle,
    live_pods,
    lost,
    setup_failures,
)

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
SECRET = PlatformObject("secrets", "s3-keys", "create it")


def test_a_context_that_answers_and_has_what_the_pods_need_can_be_used(api: FakeApi) -> None:
    api.objects[f"{NAMESPACE}/secrets/s3-keys"] = {}
    assert context_problem("fake", "training", [SECRET]) is None


@pytest.mark.parametrize(
    ("refusal", "why"),
    [
        ((401, "Unauthorized"), "its token is not valid or has ended: `trainfleet sky setup` gets a new one"),
        ((503, "etcd is down"), "the cluster does not answer (etcd is down)"),
    ],
)
def test_the_error_of_a_context_is_explained(api: FakeApi, refusal: tuple[int, str], why: str) -> None:
    api.refusals["POST", REVIEWS] = refusal
    assert context_problem("fake", "training") == why


def test_missing_rights_contexts_and_objects_are_named(api: FakeApi) -> None:
    assert context_problem("fake", "training", [SECRET]) == (
        "secrets/s3-keys is not in namespace training (create it)"
    )
    assert "there is no context `gone` in the kubeconfig" in (context_problem("gone", "training") or "")
    api.allowed = False
    assert context_problem("fake", "training") == "its user may not create pods in training"


def test_only_pods_that_live_are_listed_and_a_context_that_is_gone_is_passed_over(api: FakeApi) -> None:
    for name, phase in (("a", "Running"), ("b", "Succeeded")):
        api.objects[f"{PODS}/{name}"] = {"metadata": {"name": name}, "status": {"phase": phase}}
    found = live_pods({"gone": "training", "fake": "training"}, "trainfleet.io/run=night")
    assert [(context, pod["metadata"]["name"]) for context, pod in found or []] == [("fake", "a")]
    assert live_pods({"gone": "training"}, "trainfleet.io/run=night") is None


def test_a_pod_that_cannot_be_asked_to_stop_does_not_count(api: FakeApi) -> None:
    api.objects[f"{PODS}/a"] = {"metadata": {"name": "a"}, "status": {"phase": "Running"}}
    assert ask_to_stop({"fake": "training"}, "trainfleet.io/run=night") == 0


def pod(name: str, phase: str = "Running") -> dict[str, object]:
    labels = {SKY_HEAD_LABEL: "1" if name == "head" else "0"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("pods", "printed", "expected"),
    [
        ([pod("head"), pod("worker1")], f"{IDLE}\n", True),
        ([pod("head"), pod("worker1")], "", False),
        ([pod("head"), pod("worker1")], None, False),
        ([pod("head"), pod("worker1", "Pending")], f"{IDLE}\n", False),
        ([pod("head")], f"{IDLE}\n", False),
        ([pod("worker1"), pod("worker2")], f"{IDLE}\n", False),
    ],
    ids=["idle", "a run", "no answer", "a pod that waits", "a lost pod", "a lost head"],
)
def test_a_cluster_is_idle_if_it_has_all_pods_and_the_head_has_no_run(
    api: FakeApi,
    monkeypatch: pytest.MonkeyPatch,
    pods: list[dict[str, object]],
    printed: str | None,
    expected: bool,
) -> None:
    for number, each in enumerate(pods):
        api.objects[f"{PODS}/{number}"] = each

    def execute(self: Cluster, name: str, container: str, command: list[str]) -> str:
        assert (name, container) == ("head", "ray-node")
        if printed is None:
            raise ApiError(500, "", "the container is gone")
        return printed

    monkeypatch.setattr(Cluster, "execute", execute)
    assert idle({"gone": "training", "fake": "training"}, "trainfleet.io/cluster=shared", 2) is expected


@pytest.mark.parametrize(
    ("pods", "contexts", "expected"),
    [
        ([pod("head"), pod("worker1")], ["gone", "fake"], False),
        ([pod("worker1")], ["gone", "fake"], True),
        ([pod("head", "Failed"), pod("worker1")], ["fake"], True),
        ([], ["fake"], True),
        ([], ["gone", "fake"], False),
        ([], ["gone"], False),
    ],
    ids=["all run", "one is gone", "one has failed", "all are gone", "perhaps elsewhere", "no answer"],
)
def test_pods_are_lost_only_if_a_cluster_says_it(
    api: FakeApi, pods: list[dict[str, object]], contexts: list[str], expected: bool
) -> None:
    for number, each in enumerate(pods):
        api.objects[f"{PODS}/{number}"] = each
    assert lost(dict.fromkeys(contexts, "training"), "trainfleet.io/run=night", 2) is expected


TRACED = """+ mkdir -p /var/run/sshd
++ whoami
sudo: a terminal is required to read the password
52
Error: setup step 'env-setup' failed. Pod will exit.
"""
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
OUT_OF_MEMORY = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled"}}}]}


@pytest.mark.parametrize(
    ("status", "log", "says"),
    [
        (
            {"phase": "Failed"},
            TRACED,
            "a: SkyPilot's setup step env-setup failed: sudo: a terminal is required to read the password / 52",
        ),
        (EVICTED, "", "a: Evicted: The node was low on resource: memory."),
        (OUT_OF_MEMORY, "+ sleep infinity\n", "a: it ran out of memory"),
    ],
)
def test_a_failed_pod_is_explained(api: FakeApi, status: dict[str, object], log: str, says: str) -> None:
    api.objects[f"{PODS}/a"] = {"metadata": {"name": "a"}, "status": status}
    api.logs["a"] = "".join(f"2026-01-01T00:00:00Z {line}\n" for line in log.splitlines())
    assert setup_failures({"gone": "training", "fake": "training"}, "trainfleet.io/run=night") == [says]
