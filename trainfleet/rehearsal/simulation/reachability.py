"""Whether a Kubernetes API server is reachable from where a program is applied.

A program that creates a cluster installs objects on it in the same run, through the address in the provider's
kubeconfig. A private address answers only inside the cluster's network and in networks connected to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.kubeconfig import active_cluster
from trainfleet.rehearsal.simulation.pulumi_values import plain, texts
from trainfleet.rehearsal.simulation.refusal import Refusal

PLACES: Mapping[str, str] = {
    "laptop": "a laptop on the internet",
    "ci": "a CI runner on the internet",
    "runner": "a runner inside the network, or in one connected to it",
}
"""Where a program can be applied from."""
EKS, GKE, AKS = (
    "aws:eks/cluster:Cluster",
    "gcp:container/cluster:Cluster",
    ("azure-native:containerservice:ManagedCluster"),
)


def why_unreachable(kubeconfig: str, place: str, records: Iterable[CloudObject]) -> Refusal | None:
    """Return why the API server in a kubeconfig cannot be reached from a place; None if it can, or if no
    simulated cluster has this address.

    Args:
        kubeconfig: the provider's kubeconfig, YAML or JSON.
        place: one of `PLACES`.
        records: what exists in the simulated cloud.
    """
    host = _host(kubeconfig)
    everything = list(records)
    for cluster in everything:
        check = _CHECKS.get(cluster.token)
        if check is not None and host and host in _hosts(plain(cluster.outputs)):
            reason = check(plain(cluster.inputs), host, place != "runner", cluster, everything)
            return Refusal(f"dial tcp: i/o timeout: {reason}", _SOURCES[cluster.token]) if reason else None
    return None


def _eks(
    inputs: dict[str, Any], _host: str, outside: bool, cluster: CloudObject, everything: list[CloudObject]
) -> str:
    network = inputs.get("vpcConfig") or {}
    if outside:
        if network.get("endpointPublicAccess", True):
            return ""
        return f"the endpoint of {_name(cluster)} is private, and the program is applied from outside"
    if network.get("endpointPublicAccess", True) and not network.get("endpointPrivateAccess"):
        return ""
    groups = {
        str(plain(cluster.outputs).get("vpcConfig", {}).get("clusterSecurityGroupId")),
        *network.get("securityGroupIds", ()),
    }
    rules = (plain(each.inputs) for each in everything if each.token.endswith(":SecurityGroupIngressRule"))
    if any(rule.get("securityGroupId") in groups and _admits(rule, 443) for rule in rules):
        return ""
    return (
        f"no security group of {_name(cluster)} has an ingress rule for port 443, so its private endpoint"
        " accepts only its own nodes"
    )


def _gke(
    inputs: dict[str, Any], host: str, outside: bool, cluster: CloudObject, _everything: list[CloudObject]
) -> str:
    endpoints = inputs.get("controlPlaneEndpointsConfig") or {}
    dns = endpoints.get("dnsEndpointConfig") or {}
    if host.endswith(".gke.goog"):
        if dns.get("allowExternalTraffic") or not outside:
            return ""
        return f"the DNS endpoint of {_name(cluster)} does not allow external traffic"
    if outside and (inputs.get("privateClusterConfig") or {}).get("enablePrivateEndpoint"):
        return f"the endpoint of {_name(cluster)} is private, and the program is applied from outside"
    return ""


def _aks(
    inputs: dict[str, Any], _host: str, outside: bool, cluster: CloudObject, _everything: list[CloudObject]
) -> str:
    access = inputs.get("apiServerAccessProfile") or {}
    if outside and access.get("enablePrivateCluster"):
        return f"the endpoint of {_name(cluster)} is private, and the program is applied from outside"
    return ""


_CHECKS: Mapping[str, Callable[[dict[str, Any], str, bool, CloudObject, list[CloudObject]], str]] = {
    EKS: _eks,
    GKE: _gke,
    AKS: _aks,
}
_SOURCES: Mapping[str, str] = {
    EKS: "EKS user guide, cluster endpoint access control",
    GKE: "GKE documentation, network isolation",
    AKS: "AKS documentation, private clusters and authorized IP ranges",
}


def _admits(rule: Mapping[str, Any], port: int) -> bool:
    if not (rule.get("cidrIpv4") or rule.get("prefixListId") or rule.get("referencedSecurityGroupId")):
        return False
    if str(rule.get("ipProtocol")) == "-1":
        return True
    first, last = rule.get("fromPort"), rule.get("toPort")
    return first is not None and last is not None and int(first) <= port <= int(last)


@functools.cache
def _host(kubeconfig: str) -> str:
    """The host of the current context's server; empty if the text is not a kubeconfig."""
    server = (active_cluster(kubeconfig) or {}).get("server", "")
    return str(server).removeprefix("https://").partition("/")[0].partition(":")[0]


def _hosts(value: Any) -> Iterator[str]:
    """The hosts and addresses in a cluster's outputs."""
    return (text.removeprefix("https://") for text in texts(value))


def _name(cluster: CloudObject) -> str:
    return cluster.urn.rsplit("::", 1)[-1]
