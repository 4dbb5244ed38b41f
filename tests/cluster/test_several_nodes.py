"""Three real nodes: their network, devices, taints and zones, and what happens when one is lost."""

from __future__ import annotations

import http.server
import itertools
import json
import socket
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, until
from tests.cluster.pods import pod, web
from tests.cluster.several_nodes import NAME, three
from trainfleet.local_cluster import oci, pins
from trainfleet.local_cluster.dns import HOST_NAME

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
__all__ = ["three"]
GET = "/busybox timeout 5 /busybox wget -q -O -"
SERVERS_MIB, KUBELET = 3 << 10, 10250
GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
SPOT = {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}


@pytest.fixture
def space(three: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for one test."""
    name = f"t-{abs(hash(request.node.name)) % 10**8}"
    three.kubectl("create", "namespace", name)
    until(
        lambda: three.kubectl("-n", name, "get", "serviceaccount", "default", check=False),
        "the namespace's account",
    )
    yield name
    three.kubectl("delete", "namespace", name, "--wait=false")


def on(node: str, each: dict[str, Any]) -> dict[str, Any]:
    """Bind a pod to a node. Its kubelet, not the scheduler, admits it."""
    each["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    each["spec"]["tolerations"] = [SPOT]
    return each


def make(three: Cluster, space: str, *objects: dict[str, Any]) -> None:
    three.apply(*({**each, "metadata": {**each["metadata"], "namespace": space}} for each in objects))


def pods(three: Cluster, space: str) -> dict[str, dict[str, Any]]:
    items = json.loads(three.kubectl("-n", space, "get", "pods", "-o", "json"))["items"]
    return {item["metadata"]["name"]: item for item in items}


def wait_ready(three: Cluster, space: str, *names: str) -> None:
    three.kubectl(
        "-n", space, "wait", "--for=condition=Ready", "--timeout=120s", *(f"pod/{name}" for name in names)
    )


def run_in(three: Cluster, space: str, name: str, script: str) -> str:
    return three.kubectl("-n", space, "exec", name, "--", "/busybox", "sh", "-c", script, check=False)


def node_row(three: Cluster, name: str) -> dict[str, Any]:
    return next(row for row in three.status()["nodes"] if row["name"] == name)


def waits(three: Cluster, space: str, name: str, reason: str) -> bool:
    """Whether the scheduler has said why a pod waits."""
    conditions = pods(three, space)[name]["status"].get("conditions", ())
    return any(row.get("reason") == "Unschedulable" and reason in row["message"] for row in conditions)


def test_three_nodes_are_ready_and_their_servers_take_less_than_three_gib(three: Cluster) -> None:
    seen = three.status()
    assert seen["ready"]
    assert [(row["name"], row["state"], row["ready"], row["zone"]) for row in seen["nodes"]] == [
        ("trainfleet-three-node", "runs", True, "local-a"),
        ("trainfleet-three-node2", "runs", True, "local-b"),
        ("trainfleet-three-node3", "runs", True, "local-c"),
    ]
    versions = {row["name"]: row["version"] for row in seen["servers"]}
    assert versions["kubelet"] == versions["node2/kubelet"] == versions["node3/kubelet"] == pins.KUBE.version
    assert [name for name in versions if name.endswith("etcd")] == ["etcd"]
    assert seen["memory_mib"] < SERVERS_MIB
    assert "node2/kubelet" in three.call("cluster", "logs", "--name", NAME).stdout.split()
    assert three.call("cluster", "logs", "node2/kubelet", "--name", NAME).stdout.strip()


def test_up_again_restarts_nothing_and_refuses_fewer_nodes(three: Cluster) -> None:
    before = {row["name"]: row["starts"] for row in three.status()["servers"]}
    again = three.call("cluster", "up", "--name", NAME, "--no-image")
    assert again.returncode == 0, again.stderr
    assert {row["name"]: row["starts"] for row in three.status()["servers"]} == before
    fewer = three.call("cluster", "up", "--name", NAME, "--no-image", "--nodes", "2")
    assert fewer.returncode == 2
    assert "the cluster has 3 nodes" in fewer.stderr


def test_pods_of_every_node_reach_pods_names_services_and_this_machine(
    three: Cluster, space: str, tmp_path: Path
) -> None:
    (tmp_path / "index.html").write_text("outside\n")
    names = [node.name for node in three.state.nodes]
    made = [web(f"web{number}", f"from {name}") for number, name in enumerate(names)]
    make(
        three,
        space,
        *(
            each
            for (serve, service), name in zip(made, names, strict=True)
            for each in (on(name, serve), service)
        ),
    )
    wait_ready(three, space, *(f"web{number}" for number in range(3)))
    found = pods(three, space)
    for number, name in enumerate(names):
        assert found[f"web{number}"]["spec"]["nodeName"] == name
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    for asking, number in itertools.product(range(3), repeat=2):
        # The proxy of each node learns of a ready pod a moment later.
        command = f"{GET} http://web{number}.{space}/"
        until(partial(run_in, three, space, f"web{asking}", command), command)
    with http.server.ThreadingHTTPServer(
        (str(three.state.host_address), 0), lambda *given: handler(*given, directory=str(tmp_path))
    ) as outside:
        threading.Thread(target=outside.serve_forever, daemon=True).start()
        for asking in range(3):
            for number, name in enumerate(names):
                address = found[f"web{number}"]["status"]["podIP"]
                for host in (f"web{number}.{space}", f"{address}:8000"):
                    answer = run_in(three, space, f"web{asking}", f"{GET} http://{host}/")
                    assert answer == f"from {name}\n", f"{host} from {names[asking]}"
            url = f"http://{HOST_NAME}:{outside.server_port}/"
            assert run_in(three, space, f"web{asking}", f"{GET} {url}") == "outside\n"
        outside.shutdown()


def test_a_volume_is_the_same_on_every_node(three: Cluster, space: str) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    users = [
        on(node.name, pod(node.short, "exec /busybox sleep 600", volumes=volumes, container=dict(mounts)))
        for node in three.state.nodes
    ]
    make(three, space, claim, *users)
    wait_ready(three, space, "node", "node2", "node3")
    run_in(three, space, "node2", "echo kept > /data/file")
    assert [run_in(three, space, name, "/busybox cat /data/file") for name in ("node", "node3")] == [
        "kept\n"
    ] * 2


def test_a_loaded_image_is_on_every_node(three: Cluster, space: str, tmp_path: Path) -> None:
    layer, archive = tmp_path / "layer.tar", tmp_path / "image.tar"
    with tarfile.open(layer, "w") as tar:
        tar.add("/bin/busybox", "busybox", recursive=False)
    oci.write(archive, "localhost/loaded:1", [oci.layer(layer)], oci.Settings(entrypoint=["/busybox"]))
    done = three.call("cluster", "load", str(archive), "--name", NAME)
    assert done.returncode == 0, done.stderr
    loaded = {"image": "localhost/loaded:1", "imagePullPolicy": "Never"}
    make(
        three,
        space,
        *(
            on(node.name, pod(node.short, "exec /busybox sleep 600", container=dict(loaded)))
            for node in three.state.nodes
        ),
    )
    wait_ready(three, space, "node", "node2", "node3")


def with_devices(name: str, **amounts: int) -> dict[str, Any]:
    limits = {{"gpu": GPU, "efa": EFA}[short]: str(number) for short, number in amounts.items()}
    return pod(name, "exec /busybox sleep 600", container={"resources": {"limits": limits}})


def devices_in(three: Cluster, space: str, name: str) -> set[str]:
    """The stand-ins that a pod sees, which must be those that its environment names."""
    listed = set(run_in(three, space, name, "/busybox ls /dev/trainfleet-stand-in").split())
    variables = run_in(three, space, name, "/busybox env | /busybox grep ^TRAINFLEET_STAND_IN_").splitlines()
    named = set()
    for variable, numbers in (line.split("=") for line in variables):
        prefix = {"NVIDIA_COM_GPU": "nvidia.com-gpu", "VPC_AMAZONAWS_COM_EFA": "vpc.amazonaws.com-efa"}
        resource = prefix[variable.removeprefix("TRAINFLEET_STAND_IN_")]
        named |= {f"{resource}-{number}" for number in numbers.split(",")}
    assert listed == named
    return listed


def test_devices_are_allocated_by_the_kubelet_and_never_twice(three: Cluster, space: str) -> None:
    assert node_row(three, "trainfleet-three-node2")["devices"] == {GPU: 8, EFA: 4}
    assert node_row(three, "trainfleet-three-node3")["devices"] == {"rdma/ib": 2}
    make(three, space, with_devices("one", gpu=5, efa=2), with_devices("two", gpu=3))
    wait_ready(three, space, "one", "two")
    one, two = (devices_in(three, space, name) for name in ("one", "two"))
    assert (len(one), len(two), one & two) == (7, 3, set())
    kind = run_in(three, space, "two", f"/busybox stat -c %F /dev/trainfleet-stand-in/{min(two)}")
    assert kind == "character special file\n"
    make(three, space, with_devices("three", gpu=4))
    until(lambda: waits(three, space, "three", f"Insufficient {GPU}"), "the third pod waits")
    described = three.kubectl("describe", "node", "trainfleet-three-node2")
    allocated = described.partition("Allocated resources")[2]
    assert [line.split()[1] for line in allocated.splitlines() if GPU in line] == ["8"]
    three.kubectl("-n", space, "delete", "pod", "one")
    wait_ready(three, space, "three")
    assert not devices_in(three, space, "three") & two


def test_taints_and_zones_decide_where_pods_run(three: Cluster, space: str) -> None:
    zone = {"topology.kubernetes.io/zone": "local-c"}
    refused = pod("refused", "exec /busybox sleep 600", nodeSelector=zone)
    admitted = pod("admitted", "exec /busybox sleep 600", nodeSelector=zone, tolerations=[SPOT])
    spread = [
        {
            "topologyKey": "topology.kubernetes.io/zone",
            "maxSkew": 1,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"gang": "one"}},
        }
    ]
    gang = []
    for number in range(3):
        member = pod(
            f"member{number}", "exec /busybox sleep 600", topologySpreadConstraints=spread, tolerations=[SPOT]
        )
        member["metadata"]["labels"]["gang"] = "one"
        gang.append(member)
    make(three, space, refused, admitted, *gang)
    wait_ready(three, space, "admitted", *(f"member{number}" for number in range(3)))
    until(lambda: waits(three, space, "refused", "untolerated taint"), "the pod without a toleration waits")
    found = pods(three, space)
    assert found["admitted"]["spec"]["nodeName"] == "trainfleet-three-node3"
    assert {found[f"member{number}"]["spec"]["nodeName"] for number in range(3)} == {
        node.name for node in three.state.nodes
    }


@pytest.mark.slow
def test_a_cut_node_is_silent_until_the_kernel_connects_it_again(three: Cluster, space: str) -> None:
    first, second, _ = (node.name for node in three.state.nodes)
    serve, service = web("near", "heard")
    make(three, space, on(second, serve), service, on(first, pod("asks", "exec /busybox sleep 600")))
    wait_ready(three, space, "near", "asks")
    before = pods(three, space)["near"]["metadata"]["uid"]
    until(lambda: run_in(three, space, "asks", f"{GET} http://near.{space}/") == "heard\n", "an answer", 30)
    done = three.call("cluster", "node", "cut", "node2", "--seconds", "10", "--name", NAME)
    assert done.returncode == 0, done.stderr
    assert run_in(three, space, "asks", f"{GET} http://near.{space}/") == ""
    assert node_row(three, second)["state"] == "cut off"
    until(lambda: node_row(three, second)["state"] == "runs", "the end of the cut", 30)
    until(lambda: run_in(three, space, "asks", f"{GET} http://near.{space}/") == "heard\n", "an answer", 30)
    assert pods(three, space)["near"]["metadata"]["uid"] == before


def deployment(name: str, preferred: str) -> dict[str, Any]:
    """One replica, on the preferred node as long as it can."""
    template = pod(name, "exec /busybox sleep 600")
    labels, spec = template["metadata"]["labels"], template["spec"] | {"restartPolicy": "Always"}
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [preferred]}
    affinity = {"weight": 100, "preference": {"matchExpressions": [hostname]}}
    spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [affinity]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def homes(three: Cluster, space: str) -> list[str]:
    """The nodes on which a pod of the namespace is ready and not being deleted."""
    return [
        item["spec"]["nodeName"]
        for item in pods(three, space).values()
        if "deletionTimestamp" not in item["metadata"]
        and any(
            row["type"] == "Ready" and row["status"] == "True" for row in item["status"].get("conditions", ())
        )
    ]


@pytest.mark.deep
def test_the_pods_of_a_stopped_node_are_recreated_elsewhere(three: Cluster, space: str) -> None:
    lost = "trainfleet-three-node2"
    make(three, space, deployment("moves", lost))
    until(lambda: homes(three, space) == [lost], "the pod runs on the preferred node")
    (address,) = (str(node.address) for node in three.state.nodes if node.short == "node2")
    with socket.create_connection((address, KUBELET), timeout=5) as kept:
        stopped = three.call("cluster", "node", "stop", "node2", "--name", NAME)
        assert stopped.returncode == 0, stopped.stderr
        with pytest.raises(TimeoutError):  # without power, nothing closes a connection
            kept.recv(1)
    row = node_row(three, lost)
    seen = three.status()
    assert (row["state"], row["ready"], seen["ready"]) == ("stopped", False, False)
    assert seen["not_ready"] == [f"{lost} is not ready (stopped)"]
    until(lambda: homes(three, space) == ["trainfleet-three-node"], "the pod runs elsewhere", 120)
    started = three.call("cluster", "node", "start", "node2", "--name", NAME)
    assert started.returncode == 0, started.stderr
    until(lambda: three.status()["ready"], "all nodes are ready")
    until(lambda: node_row(three, lost)["devices"] == {GPU: 8, EFA: 4}, "the devices are back")
    until(lambda: len(pods(three, space)) == 1, "the lost pod is gone")


@pytest.mark.parametrize("which", ["node", "node7"])
def test_a_node_that_cannot_be_stopped_is_refused(three: Cluster, which: str) -> None:
    refused = three.call("cluster", "node", "stop", which, "--name", NAME)
    assert refused.returncode == 2
    assert three.status()["ready"]
