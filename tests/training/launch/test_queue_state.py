"""Why a queued run waits is read at a version of Kueue's API that the cluster serves, or the message says so."""

from __future__ import annotations

import pytest

from tests.training.launch.fake_api import FakeApi
from trainfleet.training.launch.kuberay.checks import explain
from trainfleet.training.launch.kuberay.stop_request import ask_ranks
from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster, connect
from trainfleet.training.launch.remote.queue_state import why_queued

HELD = {"metadata": {"name": "tf-run", "uid": "one"}}
WAITS = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota"}


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        (["v1beta1"], "queued in `q`: insufficient quota"),
        (["v1beta2", "v1beta1"], "queued in `q`: insufficient quota"),
        (["v1", "v1beta2"], "queued in `q`: insufficient quota"),
        (["v2"], "queued in `q`; Kueue serves v2, which this Trainfleet cannot read"),
        ([], "queued in `q`, but the cluster has no Kueue, which would admit it"),
    ],
)
def test_the_reason_is_read_at_a_served_version(api: FakeApi, versions: list[str], says: str) -> None:
    if versions:
        group = {"kind": "APIGroup", "versions": [{"version": each} for each in versions]}
        api.objects["/apis/kueue.x-k8s.io"] = group
    for version in versions:
        workload = {"metadata": {"ownerReferences": [{"uid": "one"}]}, "status": {"conditions": [WAITS]}}
        api.objects[f"/apis/kueue.x-k8s.io/{version}/namespaces/training/workloads/1"] = workload
    assert why_queued(connect("fake", "", "", "training"), HELD, "q") == says


def test_an_answer_that_kueue_refuses_is_an_error(api: FakeApi) -> None:
    api.refusals["GET", "/apis/kueue.x-k8s.io"] = (403, "forbidden")
    with pytest.raises(ApiError, match="forbidden"):
        why_queued(connect("fake", "", "", "training"), HELD, "q")


class Deaf(Cluster):
    """A cluster in which some pods run no command."""

    def __init__(self, deaf: set[str]) -> None:
        super().__init__(None, "training", "fake")
        self.deaf, self.asked = deaf, []  # type: ignore[var-annotated]

    def execute(self, pod: str, container: str, command: list[str]) -> str:
        self.asked.append((pod, container))
        if pod in self.deaf:
            raise ApiError(0, "", "no answer")
        return ""


def pod(name: str, container: str = "ray-worker", phase: str = "Running") -> dict[str, object]:
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": container}]},
        "status": {"phase": phase},
    }


def test_every_pod_with_ranks_is_asked_to_stop_and_no_other() -> None:
    cluster = Deaf({"b"})
    pods = [
        pod("a"),
        pod("b"),
        pod("c"),
        pod("d", phase="Pending"),
        pod("e", "ray-driver"),
        pod("f", "ray-head"),
    ]
    assert ask_ranks(cluster, pods, "launch") == 2
    assert sorted(cluster.asked) == [(name, "ray-worker") for name in "abc"]


def test_a_queue_whose_controller_is_down_is_named(api: FakeApi) -> None:
    webhook = 'failed calling webhook "mrayjob.kb.io": failed to call webhook: Post "https://kueue-webhook'
    refused = f'{webhook}-service.kueue-system.svc:443/mutate-ray-io-v1-rayjob": connection refused'
    error = explain(ApiError(500, "InternalError", refused), connect("fake", "", "", "training"))
    assert "the cluster's queue does not answer" in str(error)
    (problem,) = error.problems
    assert "connection refused" in problem.what
    assert "kubectl -n kueue-system get pods" in problem.fix
