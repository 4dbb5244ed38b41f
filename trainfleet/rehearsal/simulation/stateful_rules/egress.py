"""Egress: whether the nodes of a cluster reach the registries from which its pods pull.

A cloud shows missing egress only when the first pod stays in ImagePullBackOff, after the whole apply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import plain

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]
EKS, GKE, AKS = (
    "aws:eks/cluster:Cluster",
    "gcp:container/cluster:Cluster",
    "azure-native:containerservice:ManagedCluster",
)
REGISTRIES: Mapping[str, str] = {
    EKS: r"\d{12}\.dkr\.ecr[\w.-]*\.amazonaws\.com",
    GKE: r"([\w-]+\.)?(gcr\.io|pkg\.dev)/",
    AKS: r"[\w-]+\.azurecr\.io|mcr\.microsoft\.com",
}
"""Registries that nodes reach inside their cloud: by endpoints, Private Google Access or Private Link."""
EGRESS = (
    "aws:ec2/natGateway:NatGateway",
    "aws:ec2/internetGateway:InternetGateway",
    "aws:ec2/instance:Instance",
    "aws:ec2transitgateway/vpcAttachment:VpcAttachment",
)
CLOSED_OUTBOUND = ("none", "block", "userAssignedNATGateway", "userDefinedRouting")


def reached_registry(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return which image or chart cannot be pulled, because no node of its cluster has egress; empty if all
    can. Nodes in networks that the program does not create are not checked.
    """
    clusters = [other for other in others if other.token in _CLOSED]
    own = [each for each in clusters if each.id in record.place] or clusters
    if len(own) != 1 or not _CLOSED[own[0].token](own[0], others):
        return ""
    inputs, inside = plain(record.inputs), REGISTRIES[own[0].token]
    public = next((each for each in _pulled(inputs, row) if not re.match(inside, each)), "")
    if not public or (inputs.get("values") and re.search(inside, json.dumps(inputs["values"], default=str))):
        return ""
    return (
        f"{public} is in a public registry, and no node of {_logical(own[0])} has egress (NAT, or a route to"
        " another network that has it), so its pods stay in ImagePullBackOff"
    )


def _pulled(inputs: Mapping[str, Any], row: Row) -> Iterator[str]:
    """The images of a workload with their registries, or a chart."""
    if "chart" in inputs:
        yield f"chart {inputs['chart']}"
        return
    spec: Any = inputs
    for step in row["at"].split("."):
        spec = spec.get(step) if isinstance(spec, dict) else None
    for kind in ("initContainers", "containers"):
        for container in (spec or {}).get(kind) or ():
            image = str(container.get("image"))
            first = image.partition("/")[0]
            yield image if "." in first or ":" in first else f"docker.io/{image}"


def _eks(cluster: CloudObject, others: list[CloudObject]) -> bool:
    name = plain(cluster.inputs).get("name") or cluster.id
    groups = [each for each in _all(others, "aws:eks/nodeGroup:NodeGroup") if each.get("clusterName") == name]
    created = {other.id for other in others if other.token == "aws:ec2/subnet:Subnet"}
    subnets = {subnet for group in groups for subnet in group.get("subnetIds") or ()}
    if not subnets or not subnets <= created or any(other.token in EGRESS for other in others):
        return False
    routes = [
        *_all(others, "aws:ec2/route:Route"),
        *(
            each
            for table in _all(others, "aws:ec2/routeTable:RouteTable")
            for each in table.get("routes", ())
        ),
    ]
    return all(each.get("destinationCidrBlock", each.get("cidrBlock")) != "0.0.0.0/0" for each in routes)


def _gke(cluster: CloudObject, others: list[CloudObject]) -> bool:
    inputs = plain(cluster.inputs)
    pools = [each.get("networkConfig") or {} for each in _all(others, "gcp:container/nodePool:NodePool")]
    private = (inputs.get("privateClusterConfig") or {}).get("enablePrivateNodes") or (
        pools and all(each.get("enablePrivateNodes") for each in pools)
    )
    networks = {other.id for other in others if other.token == "gcp:compute/network:Network"}
    egress = ("gcp:compute/routerNat:RouterNat", "gcp:compute/route:Route", "gcp:compute/router:Router")
    return (
        bool(private)
        and inputs.get("network") in networks
        and not any(other.token in egress for other in others)
    )


def _aks(cluster: CloudObject, others: list[CloudObject]) -> bool:
    inputs = plain(cluster.inputs)
    pools = _all(others, "azure-native:containerservice:AgentPool")
    used = {each.get("vnetSubnetID") for each in (*(inputs.get("agentPoolProfiles") or ()), *pools)}
    subnets = [plain(other.inputs) for other in others if other.id in used]
    return (
        (inputs.get("networkProfile") or {}).get("outboundType") in CLOSED_OUTBOUND
        and len(subnets) == len(used)
        and not any(each.get("natGateway") or each.get("routeTable") for each in subnets)
    )


_CLOSED: Mapping[str, Callable[[CloudObject, list[CloudObject]], bool]] = {EKS: _eks, GKE: _gke, AKS: _aks}
"""Whether no node of a cluster has egress, by the cluster's type."""


def _all(others: list[CloudObject], token: str) -> Iterator[dict[str, Any]]:
    return (plain(other.inputs) for other in others if other.token == token)


def _logical(record: CloudObject) -> str:
    return record.urn.rsplit("::", 1)[-1]
