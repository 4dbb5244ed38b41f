"""What the network policies allow, evaluated like the API: by namespaces, pods, addresses and ports."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from tests.infra.kubernetes.planned import Planned, plan

INTERNET, METADATA, POD_IDENTITY, NODE = "52.218.0.1", "169.254.169.254", "169.254.170.23", "10.40.3.7"


@dataclass(frozen=True)
class Pod:
    namespace: str
    labels: dict[str, str] = field(default_factory=dict)


Place = Pod | str
"""A pod, or an address outside of the cluster."""


@cache
def whole() -> Planned:
    return plan({"layer": {"certificates": "cert-manager"}})


def policies(planned: Planned, namespace: str, kind: str) -> list[dict[str, Any]]:
    every = [
        inputs
        for inputs in planned.of("NetworkPolicy").values()
        if inputs["metadata"]["namespace"] == namespace
    ]
    return [inputs["spec"] for inputs in every if kind in inputs["spec"]["policyTypes"]]


def matches(selector: dict[str, Any] | None, labels: dict[str, str]) -> bool:
    chosen = selector or {}
    matches = chosen.get("matchLabels", {}).items() <= labels.items()
    assert all(each["operator"] == "In" for each in chosen.get("matchExpressions", ()))
    return matches and all(
        labels.get(each["key"]) in each["values"] for each in chosen.get("matchExpressions", ())
    )


def is_peer(peer: dict[str, Any], of: str, place: Place) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        address = ip_address(place) if isinstance(place, str) else None
        return (
            address is not None
            and address in ip_network(block["cidr"])
            and not any(address in ip_network(hole) for hole in block.get("except", ()))
        )
    if isinstance(place, str):
        return False
    same = (
        place.namespace == of
        if "namespaceSelector" not in peer
        else matches(peer["namespaceSelector"], {"kubernetes.io/metadata.name": place.namespace})
    )
    return same and matches(peer.get("podSelector"), place.labels)


def allowed(planned: Planned, kind: str, pod: Pod, other: Place, port: int, protocol: str) -> bool:
    """Whether the policies of the pod's namespace let this through in one direction; without any policy
    everything passes.
    """
    found = policies(planned, pod.namespace, kind)
    if not found:
        return True
    key, side = ("ingress", "from") if kind == "Ingress" else ("egress", "to")
    for policy in found:
        assert policy["podSelector"] == {}
        for rule in policy.get(key, ()):
            ports = rule.get("ports")
            if ports is not None and not any(
                (each["protocol"], each["port"]) == (protocol, port) for each in ports
            ):
                continue
            if side not in rule or any(is_peer(peer, pod.namespace, other) for peer in rule[side]):
                return True
    return False


def reaches(planned: Planned, source: Place, target: Place, port: int, protocol: str = "TCP") -> bool:
    out = isinstance(source, str) or allowed(planned, "Egress", source, target, port, protocol)
    into = isinstance(target, str) or allowed(planned, "Ingress", target, source, port, protocol)
    return out and into


TRAINING, OPERATOR, MONITORING = Pod("training"), Pod("kuberay-system"), Pod("monitoring")
DNS, GPU, NODES, KUEUE, SECRETS = (
    Pod("kube-system", {"k8s-app": "kube-dns"}),
    Pod("gpu-system"),
    Pod("node-system"),
    Pod("kueue-system"),
    Pod("external-secrets"),
)
STRANGER = Pod("default")
CERTIFICATES = Pod("cert-manager")
SIGNER = Pod("ray-certificates")
CONTROL_PLANE = "10.40.0.9"

OPEN: list[tuple[str, Place, Place, int, str]] = [
    ("Ray's processes", TRAINING, TRAINING, 31_337, "TCP"),
    ("ssh between SkyPilot's pods", TRAINING, TRAINING, 22, "TCP"),
    ("names", TRAINING, DNS, 53, "UDP"),
    ("long names", TRAINING, DNS, 53, "TCP"),
    ("names from the node's cache", TRAINING, Pod("kube-system", {"k8s-app": "node-local-dns"}), 53, "UDP"),
    ("the object store", TRAINING, INTERNET, 443, "TCP"),
    ("packages for SkyPilot", TRAINING, INTERNET, 80, "TCP"),
    ("the pod's identity", TRAINING, POD_IDENTITY, 80, "TCP"),
    ("the cluster's own API", OPERATOR, CONTROL_PLANE, 6443, "TCP"),
    ("the operator asks Ray's dashboard", OPERATOR, TRAINING, 8265, "TCP"),
    ("Ray's metrics", MONITORING, TRAINING, 8080, "TCP"),
    ("GPU metrics", MONITORING, GPU, 9400, "TCP"),
    ("node problems", MONITORING, NODES, 20257, "TCP"),
    ("Kueue's metrics", MONITORING, KUEUE, 8443, "TCP"),
    ("node exporter", MONITORING, NODE, 9100, "TCP"),
    ("kubelet", MONITORING, NODE, 10250, "TCP"),
    ("Grafana asks Prometheus", MONITORING, MONITORING, 9090, "TCP"),
    ("Kueue's webhook", CONTROL_PLANE, KUEUE, 9443, "TCP"),
    ("Kueue's API of pending workloads", CONTROL_PLANE, KUEUE, 8082, "TCP"),
    ("external-secrets' webhook", CONTROL_PLANE, SECRETS, 10250, "TCP"),
    ("cert-manager's webhook", CONTROL_PLANE, CERTIFICATES, 10250, "TCP"),
    ("a pod asks for its certificate", TRAINING, SIGNER, 8443, "TCP"),
    ("the signer verifies a token", SIGNER, CONTROL_PLANE, 443, "TCP"),
    ("external-secrets reads the store", SECRETS, INTERNET, 443, "TCP"),
]
SHUT: list[tuple[str, Place, Place, int, str]] = [
    ("the node's role", TRAINING, METADATA, 80, "TCP"),
    ("the node's role by TLS", TRAINING, METADATA, 443, "TCP"),
    ("another namespace's pod", TRAINING, Pod("kuberay-system"), 8080, "TCP"),
    ("Grafana", TRAINING, MONITORING, 3000, "TCP"),
    ("the signer, from another namespace", STRANGER, SIGNER, 8443, "TCP"),
    ("the signer, from an operator", OPERATOR, SIGNER, 8443, "TCP"),
    ("another port of the signer", TRAINING, SIGNER, 22, "TCP"),
    ("a training, from the signer", SIGNER, TRAINING, 6379, "TCP"),
    ("Prometheus", STRANGER, MONITORING, 9090, "TCP"),
    ("Ray's dashboard", STRANGER, TRAINING, 8265, "TCP"),
    ("Ray's client port", OPERATOR, TRAINING, 10001, "TCP"),
    ("Ray's dashboard from monitoring", MONITORING, TRAINING, 8265, "TCP"),
    ("ssh to the world", TRAINING, INTERNET, 22, "TCP"),
    ("mail", TRAINING, INTERNET, 25, "TCP"),
    ("plain HTTP of an operator", OPERATOR, INTERNET, 80, "TCP"),
    ("anything of a GPU agent", GPU, INTERNET, 443, "TCP"),
    ("the world into a training", INTERNET, TRAINING, 8265, "TCP"),
    ("the metadata service from monitoring", MONITORING, METADATA, 80, "TCP"),
    ("a pod that calls itself DNS elsewhere", TRAINING, Pod("default", {"k8s-app": "kube-dns"}), 53, "UDP"),
]


@pytest.mark.parametrize("way", OPEN, ids=lambda way: way[0])
def test_what_is_needed_passes(way: tuple[str, Place, Place, int, str]) -> None:
    assert reaches(whole(), *way[1:])


@pytest.mark.parametrize("way", SHUT, ids=lambda way: way[0])
def test_the_rest_does_not(way: tuple[str, Place, Place, int, str]) -> None:
    assert not reaches(whole(), *way[1:])


def test_without_the_switch_everything_passes() -> None:
    planned = plan({"layer": {"network_policies": False}})
    assert all(reaches(planned, *way[1:]) for way in SHUT)


def test_named_ranges_replace_the_world() -> None:
    planned = plan(api_cidrs=("10.40.0.0/16",))
    assert reaches(planned, TRAINING, "10.40.9.9", 443)
    assert not reaches(planned, TRAINING, INTERNET, 443)
    assert reaches(planned, TRAINING, POD_IDENTITY, 80), "the way to its identity stays"


def test_a_platform_without_ways_to_identities_opens_no_link_local_address() -> None:
    planned = plan(metadata_endpoints=())
    assert not reaches(planned, TRAINING, POD_IDENTITY, 80)


def test_runs_alone_reach_the_port_of_an_existing_store() -> None:
    planned = plan(store_port=9000)
    assert reaches(planned, TRAINING, NODE, 9000)
    assert not reaches(planned, TRAINING, METADATA, 9000)
    assert not reaches(planned, OPERATOR, NODE, 9000)
    assert not reaches(whole(), TRAINING, NODE, 9000)


def with_redis(address: str) -> Planned:
    return plan({"ray": {"redis": {"mode": "existing", "address": address}}})


def test_runs_alone_reach_the_port_of_an_existing_redis() -> None:
    planned = with_redis("rediss://redis.example.com:6380")
    assert reaches(planned, TRAINING, INTERNET, 6380)
    assert reaches(planned, TRAINING, NODE, 6380)
    assert not reaches(planned, TRAINING, METADATA, 6380)
    assert not reaches(planned, TRAINING, INTERNET, 6379)
    assert not reaches(planned, TRAINING, STRANGER, 6380)
    assert not reaches(planned, OPERATOR, INTERNET, 6380)
    assert not reaches(whole(), TRAINING, INTERNET, 6380)


@pytest.mark.parametrize("domain", ["svc", "svc.cluster.local"])
def test_runs_reach_an_existing_redis_in_another_namespace(domain: str) -> None:
    planned = with_redis(f"redis://redis.databases.{domain}:6379")
    assert reaches(planned, TRAINING, Pod("databases"), 6379)
    assert not reaches(planned, TRAINING, Pod("databases"), 22)
    assert not reaches(planned, TRAINING, STRANGER, 6379)
    assert not reaches(planned, TRAINING, INTERNET, 6379)


def test_named_ranges_do_not_close_the_way_to_an_existing_redis() -> None:
    redis = {"mode": "existing", "address": "redis://10.0.0.7:6379"}
    planned = plan({"ray": {"redis": redis}}, api_cidrs=("192.0.2.0/24",))
    assert reaches(planned, TRAINING, "10.0.0.7", 6379)
