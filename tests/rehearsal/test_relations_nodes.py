"""Relations of nodes to what is around them: each rule with a wrong and a right program, by record."""

from __future__ import annotations

from typing import Any

from tests.rehearsal.relation_cases import (
    Right,
    Wrong,
    assert_accepted,
    assert_rejected,
    each_right,
    each_wrong,
    record,
)
from trainfleet.rehearsal.simulation.cloud_object import CloudObject

EKS = record("aws:eks/cluster:Cluster", "lab", name="lab")
EKS_NODES = [
    EKS,
    record("aws:ec2/subnet:Subnet", "subnet-1"),
    record("aws:eks/nodeGroup:NodeGroup", "lab:nodes", clusterName="lab", subnetIds=["subnet-1"]),
]
EKS_OUT = record("aws:ec2/route:Route", "r-1", destinationCidrBlock="0.0.0.0/0", transitGatewayId="tgw-1")
GKE_NODES = [
    record("gcp:compute/network:Network", "projects/p/global/networks/net"),
    record(
        "gcp:container/cluster:Cluster",
        "lab",
        network="projects/p/global/networks/net",
        privateClusterConfig={"enablePrivateNodes": True},
    ),
]
GKE_OUT = record("gcp:compute/routerNat:RouterNat", "nat")
AKS = record(
    "azure-native:containerservice:ManagedCluster",
    "lab",
    networkProfile={"outboundType": "userAssignedNATGateway"},
    agentPoolProfiles=[{"vnetSubnetID": "/s/subnets/nodes"}],
)


def aks_subnet(**outbound: Any) -> CloudObject:
    return record("azure-native:network:Subnet", "/s/subnets/nodes", **outbound)


def chart(**values: Any) -> CloudObject:
    return record("kubernetes:helm.sh/v3:Release", "kuberay", chart="kuberay-operator", values=values)


def deployment(image: str) -> CloudObject:
    pod = {"containers": [{"name": "main", "image": image}]}
    return record("kubernetes:apps/v1:Deployment", "web", spec={"template": {"spec": pod}})


def template(*interfaces: tuple[int, int, str], **inputs: Any) -> CloudObject:
    cards = [
        {"networkCardIndex": card, "deviceIndex": device, "interfaceType": kind}
        for card, device, kind in interfaces
    ]
    return record("aws:ec2/launchTemplate:LaunchTemplate", "lt-1", networkInterfaces=cards, **inputs)


def nodes(machine: str, **inputs: Any) -> CloudObject:
    used = {"id": "lt-1", "version": "1"}
    return record(
        "aws:eks/nodeGroup:NodeGroup", "lab:gpu", instanceTypes=[machine], launchTemplate=used, **inputs
    )


P5, B300 = "p5.48xlarge", "p6-b300.48xlarge"
GROUP = record("aws:ec2/placementGroup:PlacementGroup", "near", {"arn": "arn:near", "name": "near"})
RESERVATION = "cr-0123456789abcdef0"


def reserved(**placement: str) -> CloudObject:
    target = {"capacityReservationTarget": {"capacityReservationId": RESERVATION}}
    return template(capacityReservationSpecification=target, placement=placement)


def bought(market: str = "", **target: str) -> CloudObject:
    options = {"instanceMarketOptions": {"marketType": market}} if market else {}
    reserving = {"capacityReservationSpecification": {"capacityReservationTarget": target}} if target else {}
    return template(**options, **reserving)


def reservation(group: str) -> CloudObject:
    return record("aws:ec2/capacityReservation:CapacityReservation", RESERVATION, placementGroupArn=group)


TARGET = {"capacityReservationId": RESERVATION}
CLASS = "cloud.google.com/compute-class"


def gke_pool(*, label: str = "big", taint: str = "big") -> CloudObject:
    taints = [{"key": CLASS, "value": taint, "effect": "NO_SCHEDULE"}] if taint else []
    config = {"labels": {CLASS: label} if label else {}, "taints": taints}
    return record(
        "gcp:container/nodePool:NodePool", "pools/big-spot", {"name": "big-spot"}, nodeConfig=config
    )


def compute_class(*pools: str) -> CloudObject:
    order = [{"nodepools": [name]} for name in pools]
    return record(
        "kubernetes:cloud.google.com/v1:ComputeClass",
        "big",
        metadata={"name": "big"},
        spec={"priorities": order},
    )


def autoscaler(expander: str) -> CloudObject:
    return record(
        "kubernetes:helm.sh/v3:Release",
        "autoscaler",
        chart="cluster-autoscaler",
        namespace="kube-system",
        values={"extraArgs": {"expander": expander}},
    )


def priorities(namespace: str = "kube-system", key: str = "priorities") -> CloudObject:
    name = "cluster-autoscaler-priority-expander"
    return record(
        "kubernetes:core/v1:ConfigMap",
        name,
        metadata={"name": name, "namespace": namespace},
        data={key: "10:\n  - .*\n"},
    )


NO_ORDER = "reads ConfigMap cluster-autoscaler-priority-expander of namespace kube-system"
ECR = "111122223333.dkr.ecr.us-east-2.amazonaws.com"
NO_EGRESS = "is in a public registry, and no node of lab has egress"
REFUSED: list[Wrong] = [
    ("a chart on EKS nodes without egress", EKS_NODES, chart(), f"chart kuberay-operator {NO_EGRESS}"),
    (
        "an image on EKS nodes without egress",
        EKS_NODES,
        deployment("rayproject/ray:2"),
        f"docker.io/rayproject/ray:2 {NO_EGRESS}",
    ),
    ("an image on GKE nodes without egress", GKE_NODES, deployment("quay.io/a/b:1"), NO_EGRESS),
    ("an image on AKS nodes without egress", [AKS, aks_subnet()], deployment("ghcr.io/a/b:1"), NO_EGRESS),
    (
        "two interfaces at one place",
        [template((0, 0, "efa"), (0, 0, "efa-only"))],
        nodes(P5),
        "two network interfaces have network card 0 and device index 0",
    ),
    ("no primary interface", [template((1, 1, "efa-only"))], nodes(P5), "which the primary one needs"),
    (
        "EFA on a card without it",
        [template((0, 0, "efa"))],
        nodes(B300),
        "network card 0 of p6-b300.48xlarge has no EFA",
    ),
    (
        "EFA at another device",
        [template((0, 0, "interface"), (1, 1, "efa-only"))],
        nodes(B300),
        "the EFA of network card 1 has device index 1; on p6-b300.48xlarge it is 0",
    ),
    (
        "a reservation in a group of the program",
        [GROUP],
        reserved(groupName="near"),
        f"reservation {RESERVATION} was not created in placement group near",
    ),
    (
        "spot nodes in a reservation",
        [bought(**TARGET)],
        nodes(P5, capacityType="SPOT"),
        f"a Spot Instance cannot run in reservation {RESERVATION}",
    ),
    (
        "spot nodes by their template",
        [bought("spot")],
        nodes(P5, capacityType="SPOT"),
        "which a managed node group rejects",
    ),
    (
        "a block on demand",
        [bought("capacity-block", **TARGET)],
        nodes(P5),
        "capacityType ON_DEMAND contradicts the template's market type capacity-block",
    ),
    (
        "a block without its market type",
        [bought(**TARGET)],
        nodes(P5, capacityType="CAPACITY_BLOCK"),
        "contradicts the template's market type (none)",
    ),
    (
        "a block without its id",
        [bought("capacity-block")],
        nodes(P5, capacityType="CAPACITY_BLOCK"),
        "does not name the capacity block",
    ),
    (
        "a class with a pool without its label",
        [gke_pool(label="")],
        compute_class("big-reserved", "big-spot"),
        f"node pool big-spot has no label {CLASS}=big",
    ),
    (
        "a class with a pool of another class",
        [gke_pool(taint="small")],
        compute_class("big-spot"),
        f"node pool big-spot has no taint {CLASS}=big",
    ),
    ("an autoscaler without its order", [], autoscaler("priority,least-waste"), NO_ORDER),
    ("an order elsewhere", [priorities("default")], autoscaler("priority"), NO_ORDER),
    (
        "an order under another key",
        [priorities(key="priority")],
        autoscaler("priority"),
        "has no key priorities",
    ),
    (
        "a reservation of another group",
        [GROUP, reservation("arn:far")],
        reserved(groupName="near"),
        f"reservation {RESERVATION} was not created in placement group near",
    ),
]
ALLOWED: list[Right] = [
    ("a chart on EKS nodes with a route", [*EKS_NODES, EKS_OUT], chart()),
    ("a chart on EKS nodes of another network", [EKS_NODES[0], EKS_NODES[2]], chart()),
    ("a chart from a mirror", EKS_NODES, chart(image={"repository": f"{ECR}/kuberay"})),
    ("an image of ECR on nodes without egress", EKS_NODES, deployment(f"{ECR}/ray:2")),
    ("an image on GKE nodes with NAT", [*GKE_NODES, GKE_OUT], deployment("quay.io/a/b:1")),
    ("an image by Private Google Access", GKE_NODES, deployment("us-docker.pkg.dev/p/r/ray:2")),
    ("EFA on every card of P5", [template((0, 0, "efa"), (1, 1, "efa-only"))], nodes(P5)),
    ("EFA on the cards of P6-B300", [template((0, 0, "interface"), (1, 0, "efa-only"))], nodes(B300)),
    ("a reservation created in its group", [GROUP, reservation("arn:near")], reserved(groupName="near")),
    ("a reservation in a group of its own", [GROUP], reserved(groupName="theirs")),
    ("a reservation without a group", [GROUP], reserved()),
    ("spot nodes", [bought()], nodes(P5, capacityType="SPOT")),
    ("reserved nodes", [bought(**TARGET)], nodes(P5, capacityType="ON_DEMAND")),
    ("a block", [bought("capacity-block", **TARGET)], nodes(P5, capacityType="CAPACITY_BLOCK")),
    ("a class with its pool", [gke_pool()], compute_class("big-spot", "of-another-program")),
    ("a class without the pool", [gke_pool(label="", taint="")], compute_class("big-reserved")),
    ("an autoscaler with its order", [priorities()], autoscaler("priority,least-waste")),
    ("an autoscaler without an order", [], autoscaler("least-waste")),
    (
        "an image on AKS nodes with NAT",
        [AKS, aks_subnet(natGateway={"id": "/s/nat"})],
        deployment("ghcr.io/a/b:1"),
    ),
]


@each_wrong(REFUSED)
def test_a_missing_relation_is_rejected(there: list[CloudObject], what: CloudObject, output: str) -> None:
    assert_rejected(there, what, output)


@each_right(ALLOWED)
def test_a_relation_that_holds_is_accepted(there: list[CloudObject], what: CloudObject) -> None:
    assert_accepted(there, what)
