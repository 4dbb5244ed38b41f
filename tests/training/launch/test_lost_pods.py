"""Pods that are lost with their node are deleted, so that KubeRay replaces them, and no other pods are."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_api import PODS, FakeApi
from tests.training.launch.kuberay_follower import follower
from tests.training.launch.kuberay_launches import run_spec
from trainfleet.training.launch.kuberay.pods import submitter_pod, worker_pod
from trainfleet.training.launch.remote import lost_pod_watcher
from trainfleet.training.launch.remote.lost_pod_watcher import LostPodWatcher
from trainfleet.training.launch.remote.lost_pods import OVERDUE_S, LostPods, is_lost

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
            "conditions": [
                {"type": "Ready", "status": ready},
                {"type": "ContainersReady", "status": containers},
                *([EVICTED] if evicted else []),
            ],
        },
    }


@pytest.mark.parametrize(
    ("case", "lost"),
    [
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


class Api:
    """Stands in for the API server as a pod reaches it: without TLS, because the test has no certificate."""

    def __init__(self, pods: list[dict[str, Any]], status: int = 200) -> None:
        self.pods, self.status = {each["metadata"]["name"]: each for each in pods}, status
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
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                api.asked.append((self.command, self.path, str(self.headers["Authorization"]), body))
                if self.command == "DELETE":
                    api.pods.pop(self.path.rpartition("/")[2])
                data = json.dumps({"items": list(api.pods.values())}).encode()
                self.send_response(api.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_DELETE = _handle  # noqa: N815 - names that http.server asks for

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
    found = LostPodWatcher("tf-run-abcde", notes.append, account)
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
        f"{pods}?labelSelector=ray.io%2Fcluster%3Dtf-run-abcde",
        "Bearer secret-token",
    )
    assert deleted[:2] == ("DELETE", f"{pods}/worker")
    assert deleted[3]["gracePeriodSeconds"] == 0
    assert deleted[3]["preconditions"] == {"uid": "uid-worker"}
    assert len(notes) == 1


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
    lost_pod_watcher.start("tf-run-abcde", lambda _: None)
    assert threading.active_count() == before


def test_only_the_submitter_of_a_platform_has_a_token() -> None:
    run = run_spec()
    assert submitter_pod(run)["spec"]["automountServiceAccountToken"] is True
    assert worker_pod(run)["spec"]["automountServiceAccountToken"] is False
    elsewhere = run_spec(context="kind", namespace="training", image="me/trainfleet:1")
    assert submitter_pod(elsewhere)["spec"]["automountServiceAccountToken"] is False


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
