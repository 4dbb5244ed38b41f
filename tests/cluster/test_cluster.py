"""A running cluster: pods, names, services, volumes, logs, and servers that restart by themselves."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.cluster.conftest import Cluster, until
from tests.cluster.cut import address, cut
from tests.cluster.pods import pod, web
from trainfleet.local_cluster import builds, node, pins
from trainfleet.local_cluster.dns import HOST_NAME
from trainfleet.local_cluster.status import memory_mib

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
GET = "/busybox timeout 5 /busybox wget -q -O -"
"""`timeout` sets the limit: Debian's static busybox crashes with wget's own `-T`."""
IDLE_MIB = 1229
"""1.2 GiB."""


@pytest.fixture
def space(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for one test."""
    name = f"t-{abs(hash(request.node.name)) % 10**8}"
    cluster.kubectl("create", "namespace", name)
    until(
        lambda: cluster.kubectl("-n", name, "get", "serviceaccount", "default", check=False),
        "the namespace's account",
    )
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def finished(cluster: Cluster, space: str, name: str) -> str:
    """Wait until a pod has succeeded and return its log."""

    def phase() -> str:
        return cluster.kubectl("-n", space, "get", "pod", name, "-o", "jsonpath={.status.phase}")

    ended = until(lambda: (now := phase()) in ("Succeeded", "Failed") and now, f"pod {name}")
    log = cluster.kubectl("-n", space, "logs", name)
    assert ended == "Succeeded", log
    return log


def make(cluster: Cluster, space: str, *objects: dict[str, Any]) -> None:
    cluster.apply(*({**each, "metadata": {**each["metadata"], "namespace": space}} for each in objects))


def test_status_reports_a_ready_cluster_and_its_versions(cluster: Cluster) -> None:
    seen = cluster.status()
    assert seen["ready"], seen["not_ready"]
    versions = {row["name"]: row["version"] for row in seen["servers"]}
    assert versions["kubelet"] == pins.KUBE.version
    assert versions["ray-operator"] == pins.RAY_OPERATOR.version
    assert f"v{pins.KUBE.version}" in cluster.kubectl("version")


@pytest.mark.parametrize("port", [6443, 10250, 10259])
def test_no_port_of_this_machine_is_taken(cluster: Cluster, port: int) -> None:
    with socket.create_server(("0.0.0.0", port)):
        assert cluster.status()["ready"]


def test_an_idle_cluster_takes_little_memory(cluster: Cluster) -> None:
    assert cluster.status()["memory_mib"] <= IDLE_MIB


def test_a_second_up_restarts_nothing(cluster: Cluster) -> None:
    before = {row["name"]: row["starts"] for row in cluster.status()["servers"]}
    done = cluster.call("cluster", "up", "--name", cluster.name, "--no-image")
    assert done.returncode == 0, done.stderr
    assert {row["name"]: row["starts"] for row in cluster.status()["servers"]} == before


def test_a_pod_runs_and_its_output_is_in_its_log(cluster: Cluster, space: str) -> None:
    make(cluster, space, pod("hello", "echo hello from $HOSTNAME"))
    assert finished(cluster, space, "hello") == "hello from hello\n"


def test_cluster_names_resolve_and_others_fail_at_once(cluster: Cluster, space: str) -> None:
    script = (
        "/busybox nslookup kubernetes.default.svc.cluster.local"
        " && ! /busybox timeout 5 /busybox nslookup example.com"
    )
    make(cluster, space, pod("names", script))
    log = finished(cluster, space, "names")
    assert str(cluster.state.services[1]) in log
    assert "SERVFAIL" in log


def test_a_service_answers_to_pods_and_to_this_machine(cluster: Cluster, space: str) -> None:
    make(cluster, space, *web("web", "served"))
    cluster.kubectl("-n", space, "wait", "--for=condition=Ready", "pod/web", "--timeout=120s")
    make(cluster, space, pod("asks", f"until {GET} http://web.{space}/; do /busybox sleep 0.2; done"))
    assert finished(cluster, space, "asks") == "served\n"
    address = cluster.kubectl("-n", space, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
    with urlopen(f"http://{address}/", timeout=10) as answer:
        assert answer.read() == b"served\n"


def test_a_pod_behind_its_own_service_reaches_itself(cluster: Cluster, space: str) -> None:
    make(cluster, space, *web("self", "me"))
    cluster.kubectl("-n", space, "wait", "--for=condition=Ready", "pod/self", "--timeout=120s")

    def answer() -> str:  # `self` alone is the pod's own host name, and so its own address
        return cluster.kubectl(
            "-n", space, "exec", "self", "--", *GET.split(), f"http://self.{space}/", check=False
        )

    assert until(answer, "the pod reaches itself through its service") == "me\n"


def test_pods_reach_a_server_on_this_machine_by_name(cluster: Cluster, space: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("outside\n")
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(
        (str(cluster.state.host_address), 0), lambda *arguments: handler(*arguments, directory=str(tmp_path))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        make(cluster, space, pod("out", f"/busybox wget -q -O - http://{HOST_NAME}:{server.server_port}/"))
        assert finished(cluster, space, "out") == "outside\n"
    finally:
        server.shutdown()


def test_a_network_cut_stops_traffic_until_it_ends(cluster: Cluster, space: str) -> None:
    make(cluster, space, *web("near", "heard"), pod("asks", "exec /busybox sleep 600"))
    cluster.kubectl("-n", space, "wait", "--for=condition=Ready", "pod/near", "pod/asks", "--timeout=120s")
    near, asks = (address(cluster, space, name) for name in ("near", "asks"))

    def fetch(url: str) -> str:
        return cluster.kubectl("-n", space, "exec", "asks", "--", *GET.split(), url, check=False)

    with http.server.ThreadingHTTPServer(
        (str(cluster.state.host_address), 0), http.server.SimpleHTTPRequestHandler
    ) as outside:
        threading.Thread(target=outside.serve_forever, daemon=True).start()
        here = f"http://{HOST_NAME}:{outside.server_port}/"
        with cut(cluster, asks, near):
            assert (fetch(f"http://near.{space}/"), bool(fetch(here))) == ("", True)
        with cut(cluster, asks, str(cluster.state.host_address)):
            assert (fetch(f"http://near.{space}/"), fetch(here)) == ("heard\n", "")
        assert (fetch(f"http://near.{space}/"), bool(fetch(here))) == ("heard\n", True)
        outside.shutdown()


def test_exec_runs_in_the_pod_and_returns_its_exit_code(cluster: Cluster, space: str) -> None:
    make(cluster, space, pod("sleeps", "exec /busybox sleep 600"))
    cluster.kubectl("-n", space, "wait", "--for=condition=Ready", "pod/sleeps", "--timeout=120s")
    assert cluster.kubectl("-n", space, "exec", "sleeps", "--", "/busybox", "echo", "inside") == "inside\n"
    command = [
        str(builds.executable(pins.KUBE)),
        "kubectl",
        f"--kubeconfig={cluster.state.kubeconfig}",
        "-n",
        space,
        "exec",
        "sleeps",
        "--",
    ]
    assert (
        subprocess.run(
            [*command, "/busybox", "sh", "-c", "exit 7"], capture_output=True, check=False
        ).returncode
        == 7
    )


def test_a_port_is_forwarded(cluster: Cluster, space: str) -> None:
    make(cluster, space, *web("forward", "through"))
    cluster.kubectl("-n", space, "wait", "--for=condition=Ready", "pod/forward", "--timeout=120s")
    command = [
        str(builds.executable(pins.KUBE)),
        "kubectl",
        f"--kubeconfig={cluster.state.kubeconfig}",
        "-n",
        space,
        "port-forward",
        "service/forward",
    ]
    with subprocess.Popen([*command, ":80"], stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            port = int(forward.stdout.readline().split(" -> ")[0].rsplit(":", 1)[1])
            with socket.create_connection(("127.0.0.1", port), 10) as client:
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")
                answer = b"".join(iter(lambda: client.recv(4096), b""))
            assert answer.endswith(b"through\n")
        finally:
            forward.terminate()


def test_a_claim_gets_a_volume_that_any_user_may_write_and_that_is_deleted_with_it(
    cluster: Cluster, space: str
) -> None:
    claim: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    mounts = {
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "securityContext": {"runAsUser": 1000},
    }
    make(cluster, space, claim, pod("writes", "echo kept > /data/file", volumes=volumes, container=mounts))
    finished(cluster, space, "writes")
    make(cluster, space, pod("reads", "/busybox cat /data/file", volumes=volumes, container=mounts))
    assert finished(cluster, space, "reads") == "kept\n"
    name = cluster.kubectl("-n", space, "get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
    folder = cluster.state.file("var", "lib", "volumes", name)
    assert (folder / "file").read_text() == "kept\n"
    cluster.kubectl("-n", space, "delete", "pod", "--all")
    cluster.kubectl("-n", space, "delete", "pvc", "data")
    until(lambda: not folder.exists(), "the volume's end")


@pytest.mark.parametrize(
    "server",
    [
        "kube-apiserver",
        *(pytest.param(name, marks=pytest.mark.deep) for name in ("etcd", "containerd", "ray-operator")),
    ],
)
def test_a_killed_server_restarts_and_pods_keep_running(cluster: Cluster, space: str, server: str) -> None:
    make(cluster, space, pod("stays", "exec /busybox sleep 600"))
    cluster.kubectl("-n", space, "wait", "--for=condition=Ready", "pod/stays", "--timeout=120s")
    first = cluster.kubectl(
        "-n", space, "get", "pod", "stays", "-o", "jsonpath={.status.startTime} {.status.podIP}"
    )
    starts = {row["name"]: row["starts"] for row in cluster.status()["servers"]}
    pid = node.pid_of(cluster.state.control_plane)
    assert pid is not None
    inside = str(cluster.state.file("running.json"))
    number = node.enter(
        pid, ["sh", "-c", f'sed -n \'/"{server}"/,/}}/s/.*"pid": \\([0-9]*\\).*/\\1/p\' {inside}']
    ).stdout.strip()
    node.enter(pid, ["kill", "-9", number])
    until(
        lambda: {row["name"]: row["starts"] for row in cluster.status()["servers"]}[server] > starts[server],
        f"{server} again",
    )
    until(lambda: cluster.status()["ready"], "ready again")
    assert (
        cluster.kubectl(
            "-n", space, "get", "pod", "stays", "-o", "jsonpath={.status.startTime} {.status.podIP}"
        )
        == first
    )
    assert cluster.kubectl("-n", space, "exec", "stays", "--", "/busybox", "echo", "there") == "there\n"


def test_the_operator_has_only_the_rights_of_its_role(cluster: Cluster) -> None:
    def may(*question: str) -> str:
        return cluster.kubectl(
            "auth", "can-i", *question, "--as=trainfleet:ray-operator", check=False
        ).strip()

    assert may("create", "pods") == "yes"
    assert may("update", "rayclusters.ray.io/status") == "yes"
    assert may("delete", "nodes") == "no"
    assert may("delete", "secrets", "-n", "kube-system") == "no"


def test_commands_print_logs_and_the_kubeconfig_path(cluster: Cluster) -> None:
    assert "kubelet" in cluster.call("cluster", "logs", "--name", cluster.name).stdout.split()
    assert cluster.call("cluster", "logs", "kubelet", "-n", "5", "--name", cluster.name).stdout.strip()
    wrong = cluster.call("cluster", "logs", "kubelett", "--name", cluster.name)
    assert wrong.returncode == 2
    assert "kubelet" in wrong.stderr
    where = Path(cluster.call("cluster", "kubeconfig", "--name", cluster.name).stdout.strip())
    assert where == cluster.state.kubeconfig
    assert where.stat().st_mode & 0o077 == 0
    assert cluster.state.folder.stat().st_mode & 0o077 == 0


def test_the_memory_of_a_missing_process_is_zero() -> None:
    assert memory_mib(os.getpid()) > 10
    assert memory_mib(2**22 - 1) == 0
