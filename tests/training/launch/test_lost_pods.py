"""Pods that are lost with their node are deleted, so that KubeRay replaces them, and no other pods are."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_api import PODS, FakeApi
from tests.training.launch.kuberay_follower import follower
from tests.training.launch.kuberay_launches import run_spec
from trainfleet.training.launch.kuberay.pods import head_pod, submitter_pod, worker_pod
from trainfleet.training.launch.remote import lost_pod_watcher
from trainfleet.training.launch.remote.lost_pod_watcher import LostPodWatcher
from trainfleet.training.launch.remote.lost_pods import OVERDUE_S, LostPods, is_lost
from trainfleet.training.launch.remote.ray_nodes import RayNodes, ray_nodes

NOON = 1767268800.0  # 2026-01-01T12:00:00Z
EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}


def pod(
    name: str = "worker",
    *,
    deleted: str | None = "2026-01-01T12:00:30Z",
    evicted: bool = True,
    ready: str = "False",
    containers: str = "True",
) -> dict[str, Any]:
    """A worker's pod. By default one whose node was lost a moment ago."""
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            **({"deletionTimestamp": deleted} if deleted else {}),
        },
        "spec": {"nodeName": "node2"},
        "status": {
            "phase": "Running",
            "startTime": "2026-01-01T11:00:00Z",
            "conditions": [
                {"type": "Ready", "status": ready},
                {"type": "ContainersReady", "status": containers},
                *([EVICTED] if evicted else []),
            ],
        },
    }


def unseen(*, node: str = "node2", evicted: bool = True, started: bool = False) -> dict[str, Any]:
    """A pod that was placed on a node, and of which its kubelet knows nothing unless it has `started`."""
    found = pod(evicted=evicted)
    found["spec"] = {"nodeName": node} if node else {}
    scheduled = {"type": "PodScheduled", "status": "True"}
    kept = [each for each in found["status"]["conditions"] if each["type"] == "DisruptionTarget"]
    found["status"] |= {"phase": "Pending", "conditions": [scheduled, *kept]}
    if not started:
        del found["status"]["startTime"]
    return found


@pytest.mark.parametrize(
    ("case", "lost"),
    [
        (unseen(), True),
        (unseen(started=True), False),
        (unseen(evicted=False), False),
        (unseen(node=""), False),
        (pod(), True),
        (pod(deleted=None), False),  # cut off for some seconds
        (pod(deleted=None, evicted=False, ready="True"), False),
        (pod(evicted=False), False),  # deleted by somebody
        (pod(containers="False"), False),  # its kubelet ends it
        (pod(ready="True"), False),  # evicted by a taint from a node that answers, and still saving
        (pod(evicted=False, ready="True", deleted="2026-01-01T11:57:59Z"), True),  # long overdue
        (pod(evicted=False, ready="True", deleted="2026-01-01T11:58:01Z"), False),
    ],
)
def test_a_pod_is_lost_if_its_node_cannot_confirm_its_end(case: dict[str, Any], lost: bool) -> None:
    assert OVERDUE_S == 120
    assert is_lost(case, NOON) is lost


def test_a_pod_is_deleted_once_it_has_looked_lost_for_a_while() -> None:
    now, deleted, notes = [0.0], [], []
    lost = LostPods(lambda each: deleted.append(each["metadata"]["name"]), notes.append, lambda: now[0])
    gone = pod(deleted="2020-01-01T00:00:00Z")
    for at, pods in ((0, [gone]), (4, [gone]), (4.5, []), (6, [gone]), (10, [gone]), (11, [gone])):
        now[0] = at
        lost.look([*pods, pod("other", deleted=None)])
        assert deleted == (["worker"] if at == 11 else [])
    now[0] = 12
    lost.look([gone])
    assert notes == ["node2 no longer answers; its pod worker is replaced"]


def test_a_pod_that_no_kubelet_has_taken_up_is_deleted_at_once() -> None:
    before, after = unseen(evicted=False), unseen()
    for each in (before, after):
        each["metadata"]["deletionTimestamp"] = "2099-01-01T00:00:00Z"
    assert deleted_after((0, before, None), (3, before, None)) == []
    assert deleted_after((0, before, None), (3, after, None)) == ["worker"]


def running(name: str, address: str, phase: str = "Running", deleted: str | None = None) -> dict[str, Any]:
    """A pod that Kubernetes takes for running, with an address."""
    found = pod(name, deleted=deleted, evicted=False, ready="True")
    found["status"] |= {"phase": phase, "podIP": address}
    return found


def nodes(alive: str = "", dead: str = "") -> RayNodes:
    return RayNodes(frozenset(alive.split()), frozenset(dead.split()))


def deleted_after(*looks: tuple[float, dict[str, Any], RayNodes | None]) -> list[str]:
    """The pods that are deleted if one pod looks as given at each time."""
    now, deleted = [0.0], []
    lost = LostPods(lambda each: deleted.append(each["metadata"]["name"]), lambda _: None, lambda: now[0])
    for at, found, known in looks:
        now[0] = at
        lost.look([found], known)
    return deleted


def test_a_pod_that_ray_has_given_up_is_deleted_before_kubernetes_notices_its_node() -> None:
    one = running("one", "10.0.0.1")
    joined, lost = (0, one, nodes("10.0.0.1 10.0.0.2")), nodes("10.0.0.2", "10.0.0.1")
    assert deleted_after(joined, (5, one, lost), (9, one, lost)) == []
    assert deleted_after(joined, (5, one, lost), (10, one, lost)) == ["one"]
    assert deleted_after(joined, (5, one, lost), (8, one, None), (10, one, lost)) == [], (
        "the head did not answer"
    )


def test_a_pod_with_the_address_of_a_lost_one_may_start() -> None:
    new, before, after = running("new", "10.0.0.1"), nodes(dead="10.0.0.1"), nodes("10.0.0.1", "10.0.0.1")
    starting = [(at, new, before) for at in (0, 5, 10, 60)]
    assert deleted_after(*starting) == []
    assert deleted_after(*starting, (65, new, after), (70, new, after), (75, new, after)) == []


@pytest.mark.parametrize(
    "changes", [{"phase": "Failed"}, {"phase": "Pending"}, {"deleted": "2099-01-01T00:00:00Z"}]
)
def test_a_pod_that_ends_by_itself_is_left_alone(changes: dict[str, str]) -> None:
    known, lost = running("one", "10.0.0.1"), nodes(dead="10.0.0.1")
    ending = running("one", "10.0.0.1", **changes)
    assert deleted_after((0, known, nodes("10.0.0.1")), (5, ending, lost), (15, ending, lost)) == []


class Api:
    """Stands in for the API server as a pod reaches it: without TLS, because the test has no certificate.

    It also answers as the dashboard of Ray's head, with `nodes`.
    """

    def __init__(self, pods: list[dict[str, Any]], status: int = 200) -> None:
        self.pods, self.status = {each["metadata"]["name"]: each for each in pods}, status
        self.nodes: Any = {"data": {"result": {"result": []}}}
        self.patched = 200
        self.head_asked: list[tuple[str, str | None]] = []
        self.asked: list[tuple[str, str, str, Any]] = []


@pytest.fixture
def account(tmp_path: Path) -> Path:
    for name, text in (("token", "secret-token\n"), ("namespace", "training"), ("ca.crt", "")):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    servers = []

    def start(api: Api) -> None:
        class Handler(BaseHTTPRequestHandler):
            def _handle(self) -> None:
                if self.path.startswith("/api/v0/nodes"):
                    api.head_asked.append((self.path, self.headers["Authorization"]))
                    self._answer(200, api.nodes)
                    return
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                api.asked.append((self.command, self.path, str(self.headers["Authorization"]), body))
                if self.command == "DELETE":
                    api.pods.pop(self.path.rpartition("/")[2])
                if self.command == "PATCH":
                    api.asked.append(("type", str(self.headers["Content-Type"]), "", None))
                status = api.patched if self.command == "PATCH" else api.status
                self._answer(status, {"items": list(api.pods.values())})

            def _answer(self, status: int, document: Any) -> None:
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PATCH = do_DELETE = _handle  # noqa: N815 - names that http.server asks for

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_address[1]))

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def watcher(account: Path, notes: list[str]) -> LostPodWatcher:
    dashboard = f"http://127.0.0.1:{os.environ['KUBERNETES_SERVICE_PORT']}"
    found = LostPodWatcher("tf-run-abcde", dashboard, notes.append, account)
    found._pods = found._pods.replace("https:", "http:")
    return found


def test_the_submitter_deletes_a_lost_pod_of_its_own_cluster(
    account: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainfleet.training.launch.remote.lost_pods.CONFIRM_S", 0.0)
    api, notes = Api([pod(deleted="2020-01-01T00:00:00Z"), pod("other", deleted=None)]), []
    serve(api)
    assert watcher(account, notes).look()
    assert list(api.pods) == ["other"]
    (asked, deleted) = api.asked
    pods = "/api/v1/namespaces/training/pods"
    assert asked[:3] == (
        "GET",
        f"{pods}?labelSelector=ray.io%2Fcluster+in+%28tf-run-abcde%2Ctrainfleet.lost%29",
        "Bearer secret-token",
    )
    assert deleted[:2] == ("DELETE", f"{pods}/worker")
    assert deleted[3]["gracePeriodSeconds"] == 0
    assert deleted[3]["preconditions"] == {"uid": "uid-worker"}
    assert len(notes) == 1


def state(*rows: tuple[str, str]) -> dict[str, Any]:
    """The state API's answer (ray.util.state.common.NodeState)."""
    found = [{"node_id": f"id-{ip}", "node_ip": ip, "is_head_node": False, "state": how} for ip, how in rows]
    return {"result": True, "msg": "", "data": {"result": {"total": len(found), "result": found}}}


def test_the_submitter_asks_ray_for_the_nodes_that_it_has_given_up(
    account: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainfleet.training.launch.remote.lost_pods.CONFIRM_S", 0.0)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-the-head")
    api, notes = Api([running("one", "10.0.0.1"), running("two", "10.0.0.2")]), []
    api.pods["two"]["metadata"]["labels"] = {"ray.io/cluster": "tf-run-abcde"}
    serve(api)
    found = watcher(account, notes)
    api.nodes = state(("10.0.0.1", "ALIVE"), ("10.0.0.2", "ALIVE"))
    assert found.look()
    api.nodes = state(("10.0.0.1", "ALIVE"), ("10.0.0.2", "DEAD"))
    assert found.look()
    assert notes == ["node2 no longer answers; its pod two is replaced"]
    assert api.head_asked[0] == ("/api/v0/nodes?limit=10000", "Bearer of-the-head")


@pytest.mark.parametrize(
    ("status", "left"), [(200, ["one", "two"]), (409, ["one", "two"]), (403, ["one"]), (422, ["one"])]
)
def test_the_submitter_releases_a_pod_that_ray_has_given_up(
    status: int, left: list[str], account: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainfleet.training.launch.remote.lost_pods.CONFIRM_S", 0.0)
    api = Api([running("one", "10.0.0.1"), running("two", "10.0.0.2")])
    api.pods["two"]["metadata"]["labels"] = {"ray.io/cluster": "tf-run-abcde"}
    api.patched = status
    serve(api)
    found = watcher(account, [])
    for last in ("ALIVE", "DEAD"):
        api.nodes = state(("10.0.0.1", "ALIVE"), ("10.0.0.2", last))
        assert found.look()
    patched = next(each for each in api.asked if each[0] == "PATCH")
    assert patched[1:] == (
        "/api/v1/namespaces/training/pods/two",
        "Bearer secret-token",
        {"metadata": {"uid": "uid-two", "labels": {"ray.io/cluster": "trainfleet.lost"}}},
    )
    assert ("type", "application/merge-patch+json", "", None) in api.asked
    assert list(api.pods) == left


@pytest.mark.parametrize("answer", [{}, {"data": None}, {"data": {"result": {"result": [{}]}}}, [], "no"])
def test_an_answer_of_another_form_says_nothing_about_the_nodes(
    answer: Any, account: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainfleet.training.launch.remote.lost_pods.CONFIRM_S", 0.0)
    api = Api([running("one", "10.0.0.1"), pod(deleted="2020-01-01T00:00:00Z")])
    api.nodes = answer
    serve(api)
    assert watcher(account, []).look()
    assert list(api.pods) == ["one"], "what Kubernetes knows still counts"
    with pytest.raises(ValueError, match="unexpected answer"):
        ray_nodes(f"http://127.0.0.1:{os.environ['KUBERNETES_SERVICE_PORT']}", {})


def test_the_submitter_looks_no_longer_without_the_right_to(account: Path, serve: Any) -> None:
    api = Api([pod()], status=403)
    serve(api)
    assert not watcher(account, []).look()


@pytest.mark.parametrize("status", [401, 500])
def test_an_api_server_that_fails_is_asked_again(status: int, account: Path, serve: Any) -> None:
    api = Api([pod()], status=status)
    serve(api)
    assert watcher(account, []).look()
    assert [each[0] for each in api.asked] == ["GET"]


def test_without_a_token_nothing_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_pod_watcher, "ACCOUNT", tmp_path)
    before = threading.active_count()
    lost_pod_watcher.start("tf-run-abcde", "http://127.0.0.1:9", lambda _: None)
    assert threading.active_count() == before


def test_only_the_submitter_of_a_platform_has_a_token() -> None:
    run = run_spec()
    assert submitter_pod(run)["spec"]["automountServiceAccountToken"] is True
    assert worker_pod(run)["spec"]["automountServiceAccountToken"] is False
    elsewhere = run_spec(context="kind", namespace="training", image="me/trainfleet:1")
    assert submitter_pod(elsewhere)["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("cluster", [None, "shared"])
def test_the_submitter_prefers_the_node_of_its_head_to_those_of_workers(cluster: str | None) -> None:
    run = run_spec(**({"cluster": cluster} if cluster else {}))
    pod_affinity = submitter_pod(run)["spec"]["affinity"]["podAffinity"]
    (preferred,) = pod_affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    selected = preferred["podAffinityTerm"]["labelSelector"]["matchLabels"].items()
    # KubeRay's own labels of a cluster's pods.
    ray = {"ray.io/cluster": cluster or "tf-run-abcde", "ray.io/node-type": "head"}
    assert selected <= (head_pod(run)["metadata"]["labels"] | ray).items()
    worker = worker_pod(run)["metadata"]["labels"] | ray | {"ray.io/node-type": "worker"}
    assert not selected <= worker.items()


def test_the_launcher_deletes_a_lost_pod(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainfleet.training.launch.remote.lost_pods.CONFIRM_S", 0.0)
    found, output = follower(monkeypatch)
    api.objects |= {f"{PODS}/{name}": pod(name, deleted="2020-01-01T00:00:00Z") for name in ("one", "two")}
    found.lost.look(found._items("Pod"))
    assert not [path for path in api.objects if path.startswith(f"{PODS}/")]
    assert output.notes().count("node2 no longer answers") == 2


def test_a_launcher_that_may_not_delete_pods_does_not_say_that_it_has(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainfleet.training.launch.remote.lost_pods.CONFIRM_S", 0.0)
    found, output = follower(monkeypatch)
    found._create()
    api.objects[f"{PODS}/one"] = pod("one", deleted="2020-01-01T00:00:00Z")
    api.refusals["DELETE", f"{PODS}/one"] = (403, "Forbidden")
    found._poll({"status": {"rayClusterName": "tf-run-abcde", "jobDeploymentStatus": "Running"}})
    assert ("DELETE", f"{PODS}/one") in api.asked
    assert f"{PODS}/one" in api.objects
    assert "no longer answers" not in output.notes()
