"""Network policies have an effect on the local cluster: on one node, across nodes, and without their agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, trainfleet, until, with_kubectl
from tests.cluster.pods import pod, web
from trainfleet.local_cluster import checks, network_policies, node, pins

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
NAME = "policies"
PORTS = (8000, 8001)
KINDS = ["Ingress", "Egress"]
DNS = {
    "to": [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        }
    ],
    "ports": [{"protocol": "UDP", "port": 53}],
}


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    """Two nodes without the image. `shop` has a server and a client on each; `street` has a client."""
    trainfleet("cluster", "down", "--name", NAME)
    done = trainfleet("cluster", "up", "--name", NAME, "--nodes", "2", "--no-image", timeout=2700)
    assert done.returncode == 0, done.stderr
    here = with_kubectl(Cluster(NAME, trainfleet))
    for space in ("shop", "street"):
        here.kubectl("create", "namespace", space)
    for each in here.state.nodes:
        put(here, "shop", each.name, *web(f"server-{each.short}", each.short))
        put(here, "shop", each.name, pod(f"client-{each.short}", "exec /busybox sleep 3600"))
    put(here, "street", here.state.nodes[1].name, pod("client", "exec /busybox sleep 3600"))
    for space in ("shop", "street"):
        here.kubectl("-n", space, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s")
    yield here
    assert trainfleet("cluster", "down", "--name", NAME).returncode == 0


@pytest.fixture
def policies(two: Cluster) -> Iterator[Cluster]:
    """The cluster, without policies before and after the test."""
    yield two
    for space in ("shop", "street"):
        two.kubectl("-n", space, "delete", "networkpolicy", "--all")
    until(lambda: reaches(two, "shop/client-node", "server-node2"), "traffic without policies")


def put(cluster: Cluster, space: str, on: str, *objects: dict[str, Any], restart: str = "Always") -> None:
    """Create objects in a namespace, pods on a node and with a second port."""
    for each in objects:
        each["metadata"]["namespace"] = space
        if each["kind"] == "Pod":
            each["spec"] |= {"nodeName": on, "restartPolicy": restart}
            container = each["spec"]["containers"][0]
            listen = f"/busybox httpd -p {PORTS[1]} -h / ;" if "server" in each["metadata"]["name"] else ""
            container["command"][-1] = listen + container["command"][-1]
    cluster.apply(*objects)


def policy(cluster: Cluster, space: str, name: str, **spec: Any) -> None:
    body = {"podSelector": {}, "policyTypes": [kind for kind in KINDS if kind.lower() in spec] or KINDS}
    document = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    cluster.apply(document | {"metadata": {"name": name, "namespace": space}, "spec": body | spec})


def address(cluster: Cluster, name: str) -> str:
    return cluster.kubectl("-n", "shop", "get", "pod", name, "-o", "jsonpath={.status.podIP}")


def run(cluster: Cluster, client: str, *command: str) -> bool:
    space, name = client.split("/")
    line = ("/busybox", "timeout", "4", "/busybox", *command)
    output = cluster.kubectl(
        "-n",
        space,
        "exec",
        name,
        "--",
        "/busybox",
        "sh",
        "-c",
        f"{' '.join(line)} >/dev/null 2>&1 && echo yes || echo no",
    )
    return output.strip() == "yes"


def reaches(cluster: Cluster, client: str, server: str, port: int = PORTS[0]) -> bool:
    """Whether a client, NAMESPACE/POD, connects to a server of `shop` at its own address."""
    return run(cluster, client, "nc", "-w", "4", address(cluster, server), str(port), "</dev/null")


def connected(cluster: Cluster, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs of a client and a server that connect. All try at once: those that do not wait 4 s."""
    with ThreadPoolExecutor(len(pairs)) as threads:
        return [
            pair
            for pair, ok in zip(pairs, threads.map(lambda pair: reaches(cluster, *pair), pairs), strict=True)
            if ok
        ]


def resolves(cluster: Cluster, client: str) -> bool:
    return run(cluster, client, "nslookup", "kubernetes.default.svc.cluster.local")


def test_a_closed_namespace_is_closed_on_one_node_and_across_nodes_until_the_policy_is_deleted(
    policies: Cluster,
) -> None:
    pairs = [
        (client, server)
        for client in ("shop/client-node", "shop/client-node2", "street/client")
        for server in ("server-node", "server-node2")
    ]
    assert connected(policies, pairs) == pairs
    policy(policies, "shop", "deny-all")
    until(lambda: not reaches(policies, *pairs[0]), "the policy")
    assert connected(policies, pairs) == []
    assert not resolves(policies, "shop/client-node")
    assert resolves(policies, "street/client")
    policies.kubectl("-n", "shop", "delete", "networkpolicy", "deny-all")
    until(lambda: reaches(policies, *pairs[0]), "traffic again")
    assert connected(policies, pairs) == pairs


def test_a_rule_admits_its_pods_and_its_port_only(policies: Cluster) -> None:
    policy(policies, "shop", "deny-all")
    peer = {"podSelector": {"matchLabels": {"app": "client-node2"}}}
    port = {"protocol": "TCP", "port": PORTS[0]}
    policy(policies, "shop", "in", ingress=[{"from": [peer], "ports": [port]}])
    policy(policies, "shop", "out", egress=[{}])
    until(lambda: reaches(policies, "shop/client-node2", "server-node"), "the rule")
    assert reaches(policies, "shop/client-node2", "server-node2")
    assert not reaches(policies, "shop/client-node2", "server-node", PORTS[1])
    denied = [
        ("shop/client-node", "server-node"),
        ("shop/client-node", "server-node2"),
        ("street/client", "server-node2"),
    ]
    assert connected(policies, denied) == []


@pytest.mark.slow
def test_a_namespace_selector_admits_all_pods_of_the_namespace(policies: Cluster) -> None:
    street = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "street"}}}
    policy(policies, "shop", "in", ingress=[{"from": [street]}])
    until(lambda: not reaches(policies, "shop/client-node", "server-node"), "the policy")
    assert reaches(policies, "street/client", "server-node")
    assert reaches(policies, "street/client", "server-node2")
    assert not reaches(policies, "shop/client-node2", "server-node")


@pytest.mark.slow
def test_names_are_resolved_if_the_dns_pods_are_allowed(policies: Cluster) -> None:
    clients = ("shop/client-node", "shop/client-node2")
    policy(policies, "shop", "deny-all")
    until(lambda: not resolves(policies, clients[0]), "the policy")
    assert not resolves(policies, clients[1])
    policy(policies, "shop", "dns", egress=[DNS])
    until(lambda: resolves(policies, clients[0]), "the rule")
    assert resolves(policies, clients[1])
    assert not reaches(policies, clients[0], "server-node")


def test_a_pod_is_closed_from_its_first_packet(policies: Cluster) -> None:
    """The API server does not know the address of a pod that has just started."""
    policy(policies, "shop", "deny-all")
    until(lambda: not reaches(policies, "shop/client-node", "server-node2"), "the policy")
    server = policies.kubectl("-n", "street", "get", "pod", "client", "-o", "jsonpath={.status.podIP}")
    # ICMP, at once and without a retry: a connection would be tried again after the address is known.
    script = f"/busybox ping -c 3 -i 0.1 -W 1 {server}; echo ended $?"
    for each in policies.state.nodes:
        put(policies, "shop", each.name, pod(f"new-{each.short}", script), restart="Never")
        until(
            lambda name=f"new-{each.short}": (
                "ended" in policies.kubectl("-n", "shop", "logs", name, check=False)
            ),
            "the pod's end",
        )
        assert "ended 1" in policies.kubectl("-n", "shop", "logs", f"new-{each.short}")
        policies.kubectl("-n", "shop", "delete", "pod", f"new-{each.short}")


def agent(cluster: Cluster, number: int, signal: str) -> None:
    """Send a signal to the agent of a node."""
    place = cluster.state.nodes[number - 1]
    pid = node.pid_of(place)
    assert pid is not None
    inside = json.loads(place.file("running.json").read_text())["network-policies"]["pid"]
    node.enter(pid, ["kill", f"-{signal}", str(inside)])


def starts(cluster: Cluster) -> int:
    rows = {row["name"]: row["starts"] for row in cluster.status()["servers"]}
    return int(rows["network-policies"])


@pytest.mark.slow
def test_nothing_passes_unchecked_while_the_agent_is_stopped_or_restarts(policies: Cluster) -> None:
    allowed, denied = ("shop/client-node", "server-node"), ("street/client", "server-node")
    same = {"podSelector": {}}
    policy(policies, "shop", "same", ingress=[{"from": [same]}])
    until(lambda: not reaches(policies, *denied), "the policy")
    assert reaches(policies, *allowed)
    before = starts(policies)
    agent(policies, 1, "STOP")
    assert not reaches(policies, *allowed)
    assert not reaches(policies, *denied)
    agent(policies, 1, "CONT")
    until(lambda: reaches(policies, *allowed), "the agent again")
    agent(policies, 1, "KILL")
    assert [reaches(policies, *denied) for _ in range(3)] == [False] * 3
    until(lambda: starts(policies) > before, "the agent's restart")
    until(lambda: reaches(policies, *allowed), "the restarted agent")
    assert not reaches(policies, *denied)


@pytest.mark.deep
def test_policies_are_enforced_on_a_node_that_was_stopped_and_after_another_up(policies: Cluster) -> None:
    policy(policies, "shop", "in", ingress=[{"from": [{"podSelector": {}}]}])
    until(lambda: not reaches(policies, "street/client", "server-node"), "the policy")
    for action in ("stop", "start"):
        done = trainfleet("cluster", "node", action, "node2", "--name", NAME)
        assert done.returncode == 0, done.stderr
    done = trainfleet("cluster", "up", "--name", NAME, "--no-image")
    assert done.returncode == 0, done.stderr
    script = "/busybox httpd -f -p 8000 -h /"
    put(policies, "shop", policies.state.nodes[1].name, pod("again", script))
    put(policies, "street", policies.state.nodes[1].name, pod("again", "exec /busybox sleep 3600"))
    for space in ("shop", "street"):
        policies.kubectl("-n", space, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s")
    until(lambda: reaches(policies, "shop/client-node", "again"), "the server")
    assert not reaches(policies, "street/again", "again")
    assert not reaches(policies, "street/again", "server-node")


def test_the_agent_may_only_read_what_it_evaluates(two: Cluster) -> None:
    def may(*question: str) -> str:
        user = "--as=trainfleet:network-policies"
        return two.kubectl("auth", "can-i", *question, user, check=False).strip()

    assert may("list", "networkpolicies.networking.k8s.io", "-A") == "yes"
    assert may("watch", "pods", "-A") == "yes"
    assert may("get", "secrets", "-n", "shop") == "no"
    assert may("delete", "networkpolicies.networking.k8s.io", "-n", "shop") == "no"


@pytest.mark.slow
def test_policies_have_no_effect_if_they_are_turned_off(two: Cluster) -> None:
    try:
        done = trainfleet("cluster", "up", "--name", NAME, "--no-image", "--no-network-policies")
        assert done.returncode == 0, done.stderr
        policy(two, "shop", "deny-all")
        assert reaches(two, "street/client", "server-node")
        assert "network-policies" not in {row["name"] for row in two.status()["servers"]}
        done = trainfleet("cluster", "up", "--name", NAME, "--no-image", "--network-policies")
        assert done.returncode == 0, done.stderr
        until(lambda: not reaches(two, "street/client", "server-node"), "the policy")
    finally:
        two.kubectl("-n", "shop", "delete", "networkpolicy", "--all")


def test_a_kernel_without_queues_is_named_before_anything_is_created(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    assert network_policies.missing_in_kernel() == ""
    real = network_policies.rules
    monkeypatch.setattr(
        network_policies,
        "rules",
        lambda *given: real(*given).replace("-j NFQUEUE --queue-num", "-j NO_SUCH -q"),
    )
    with pytest.raises(Exception, match="xt_NFQUEUE") as raised:
        checks.require_resources(tmp_path, image=False, optional={pins.NETWORK_POLICIES})
    assert "--no-network-policies" in str(raised.value)
    checks.require_resources(tmp_path, image=False, optional=set())
