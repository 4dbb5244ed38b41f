"""Network: traffic inside the platform, its logs, and the paths to the stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainfleet.policies.engine.accessors import (
    Forbidden,
    at,
    document,
    false,
    is_false,
    is_true,
    listed,
    missing_companion,
    numbered,
    one_of,
    stores_only_logs,
)
from trainfleet.policies.engine.pod_specs import CLOUD_NAMESPACES
from trainfleet.policies.engine.rule import FROM_STAGING, UNKNOWN, Json, Resource, Rule, Violation
from trainfleet.policies.resource_types import (
    AKS,
    AZURE_STORAGE,
    AZURE_SUBNET,
    EKS_ADDON,
    GCP_NETWORK,
    GCP_SUBNET,
    GKE,
    GKE_NODES,
    NAMESPACE,
    NETWORK_POLICY,
    VNET,
    VPC,
)

PRIVATE_PURPOSES = {"PRIVATE", "PRIVATE_RFC_1918"}
RESERVED_SUBNETS = {
    "AzureFirewallSubnet",
    "AzureFirewallManagementSubnet",
    "AzureBastionSubnet",
    "GatewaySubnet",
    "RouteServerSubnet",
}
"""Azure subnets that support no security group or have their own."""
SYSTEM_NAMESPACES = {"default", "kube-system", "kube-public", "kube-node-lease"}


def _serves_machines(subnet: Resource, resources: Sequence[Resource]) -> bool:
    """Whether a Google subnet serves nodes and pods, not load balancers or a GPU fabric."""
    fabrics = {
        urn for pool in resources if pool.kind == GKE_NODES for urn in pool.depends.get("networkConfig", ())
    }
    return str(subnet.props.get("purpose") or "PRIVATE") in PRIVATE_PURPOSES and subnet.urn not in fabrics


def unlogged_subnets(resources: Sequence[Resource]) -> Iterable[Violation]:
    for subnet in resources:
        if (
            subnet.kind == GCP_SUBNET
            and subnet.props.get("logConfig") is None
            and _serves_machines(subnet, resources)
        ):
            yield Violation("logConfig is missing", subnet.urn, subnet.name)


def no_private_google_access(resources: Sequence[Resource]) -> Iterable[Violation]:
    for subnet in resources:
        if subnet.kind != GCP_SUBNET or not _serves_machines(subnet, resources):
            continue
        near = subnet.props.get("privateIpGoogleAccess")
        if near is not UNKNOWN and not is_true(near):
            yield Violation("privateIpGoogleAccess is not true", subnet.urn, subnet.name)


def default_group(resource: Resource) -> Iterable[Violation]:
    for direction in ("ingress", "egress"):
        if listed(resource.props.get(direction)):
            yield Violation(
                f"{direction} has rules, which apply to every resource without a group of its own"
            )


def subnet_group(resource: Resource) -> Iterable[Violation]:
    if (
        _group_missing(resource.props)
        and resource.props.get("subnetName", resource.props.get("name")) not in RESERVED_SUBNETS
    ):
        yield Violation("networkSecurityGroup is missing")


def inline_subnet_groups(resource: Resource) -> Iterable[Violation]:
    for where, subnet in numbered("subnets", resource.props.get("subnets")):
        if _group_missing(subnet) and subnet.get("name") not in RESERVED_SUBNETS:
            yield Violation(f"{where}.networkSecurityGroup is missing")


def _group_missing(subnet: Json) -> bool:
    return subnet.get("networkSecurityGroup") is None


def eks_policy_engine(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("addonName") != "vpc-cni":
        return
    settings = document(resource.props.get("configurationValues"))
    if not isinstance(settings, dict) or not is_true(settings.get("enableNetworkPolicy")):
        yield Violation(
            "configurationValues.enableNetworkPolicy is not true, "
            "so network policies are accepted but not enforced"
        )


def gke_policy_engine(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("datapathProvider") != "ADVANCED_DATAPATH" and not is_true(
        at(resource.props, "networkPolicy.enabled")
    ):
        yield Violation("datapathProvider is not `ADVANCED_DATAPATH` and networkPolicy.enabled is not true")


def gke_addresses(resource: Resource) -> Iterable[Violation]:
    if (
        resource.props.get("ipAllocationPolicy") is None
        and resource.props.get("networkingMode") != "VPC_NATIVE"
    ):
        yield Violation("ipAllocationPolicy is missing, so every node needs one of the network's few routes")


def namespaces_without_deny(resources: Sequence[Resource]) -> Iterable[Violation]:
    """Report namespaces without a policy that selects every pod and allows no ingress."""
    closed, unknown = set(), False
    for policy in resources:
        if policy.kind == NETWORK_POLICY and _denies_ingress(policy):
            namespace = at(policy.props, "metadata.namespace")
            unknown = unknown or namespace is UNKNOWN
            if isinstance(namespace, str):
                closed.add(namespace)
    for one in resources:
        if one.kind == NAMESPACE:
            name = at(one.props, "metadata.name")
            if (
                isinstance(name, str)
                and not unknown
                and name not in {*closed, *SYSTEM_NAMESPACES, *CLOUD_NAMESPACES}
            ):
                yield Violation(
                    f"namespace {name} has no network policy that denies ingress by default",
                    one.urn,
                    one.name,
                )


def _denies_ingress(policy: Resource) -> bool:
    spec = policy.props.get("spec") or {}
    if spec is UNKNOWN:
        return False
    everything = not (spec.get("podSelector") or {})
    return (
        everything
        and "Ingress" in listed(spec.get("policyTypes") or ["Ingress"])
        and not listed(spec.get("ingress"))
    )


def _store_endpoint(resource: Resource) -> bool:
    return str(resource.props.get("serviceName") or "").endswith(".s3")


def _not_for_nodes(account: Resource, resources: Sequence[Resource]) -> bool:
    """Whether no node uses an account: it stores only logs, or the stack has no cluster and no network and
    the account lists who connects, such as the runners that use the state of Pulumi.
    """
    listed_only = at(account.props, "networkRuleSet.defaultAction") == "Deny" and bool(
        listed(at(account.props, "networkRuleSet.ipRules"))
    )
    alone = not any(one.kind in (AKS, VNET) for one in resources)
    return (alone and listed_only) or stores_only_logs(account, resources)


def default_outbound(resource: Resource) -> Iterable[Violation]:
    lent = resource.props.get("defaultOutboundAccess")
    if resource.props.get("natGateway") is None and not is_false(lent):
        yield Violation("natGateway is missing and defaultOutboundAccess is not false")


NETWORK_LOGGED = Rule(
    name="network-logged",
    statement="Connections in the platform's network are logged.",
    reason="After an incident the flow logs are the only record of where data went.",
    fix="set network.flow_logs: true",
    references=(
        "CIS AWS 3.9",
        "CKV2_AWS_11",
        "AWS-0178",
        "CIS GCP 3.8",
        "CKV_GCP_26",
        "GCP-0076",
        "CKV_GCP_61",
    ),
    severity="medium",
    levels=FROM_STAGING,
    stack={
        VPC: missing_companion((VPC,), ("aws:ec2/flowLog:FlowLog",), "vpcId", "the network has no flow log"),
        GCP_SUBNET: unlogged_subnets,
        VNET: missing_companion(
            (VNET,), ("azure-native:network:FlowLog",), "targetResourceId", "the network has no flow log"
        ),
    },
)
NO_DEFAULT_NETWORK = Rule(
    name="no-default-network",
    statement="No resource uses a network or security group that the cloud created by default.",
    reason="Defaults are open so that a first try works, and a resource that names no network ends up there.",
    fix="create the network and its groups in the platform, and leave the default ones empty",
    references=("CIS AWS 5.4", "CKV2_AWS_12", "AWS-0173", "CKV_AWS_148", "CIS GCP 3.1", "CKV_GCP_27"),
    severity="medium",
    checks={
        "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": default_group,
        "aws:ec2/defaultVpc:DefaultVpc": Forbidden("the account's default network is used"),
        GCP_NETWORK: false("autoCreateSubnetworks", "it creates a subnet in every region"),
    },
    stack={
        VPC: missing_companion(
            (VPC,),
            ("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup",),
            "vpcId",
            "the network's default security group is not emptied",
        ),
    },
)
SUBNET_GROUPS = Rule(
    name="guarded-subnets",
    statement="Every subnet has a network security group.",
    reason="In Azure, a subnet without one filters no traffic between itself and the rest of the network.",
    fix="set a network security group on the subnet",
    references=("CKV2_AZURE_31",),
    severity="medium",
    checks={AZURE_SUBNET: subnet_group, VNET: inline_subnet_groups},
)
POLICIES_ENFORCED = Rule(
    name="network-policies-enforced",
    statement="The cluster enforces network policies.",
    reason=(
        "Without a policy engine a cluster accepts every policy and enforces none, so namespaces only look "
        "isolated."
    ),
    fix=(
        "enable the network policy engine (EKS: the add-on's enableNetworkPolicy; GKE: Dataplane V2; AKS: "
        "Cilium)"
    ),
    references=("CIS EKS 4.3.1", "CIS GKE 5.6.7", "CKV_GCP_12", "GCP-0056", "CKV_AZURE_7", "AZU-0043"),
    severity="high",
    checks={
        EKS_ADDON: eks_policy_engine,
        GKE: gke_policy_engine,
        AKS: one_of("networkProfile.networkPolicy", ("cilium", "azure", "calico")),
    },
)
NAMESPACES_CLOSED = Rule(
    name="namespaces-closed",
    statement="Every namespace denies ingress by default; further network policies allow what it needs.",
    reason=(
        "Ray trusts any client that reaches its ports; in an open cluster that is every pod of every team."
    ),
    fix="leave layer.network_policies on, or add a policy that selects every pod and allows no ingress",
    references=("CIS Kubernetes 5.3.2", "KSV-0038", "Ray: security"),
    severity="high",
    levels=FROM_STAGING,
    stack={NAMESPACE: namespaces_without_deny},
)
POD_ADDRESSES = Rule(
    name="pods-have-addresses",
    statement="Pods have addresses of the network or of the cluster's overlay, without a route per node.",
    reason=(
        "With a route per node, the network's route limit caps the cluster, and network policies see nodes "
        "instead of pods."
    ),
    fix="use VPC-native ranges (GKE) or Azure CNI (AKS)",
    references=("CIS GKE 5.6.2", "CKV_GCP_23", "CKV2_AZURE_29"),
    severity="medium",
    checks={GKE: gke_addresses, AKS: one_of("networkProfile.networkPlugin", ("azure", "none"))},
)
PRIVATE_STORES = Rule(
    name="private-way-to-stores",
    statement="Nodes reach the object store over the cloud's private network.",
    reason=(
        "Terabytes of checkpoints through a NAT gateway are billed by the gigabyte and take an unnecessary "
        "path."
    ),
    fix="add an S3 gateway endpoint (AWS), private Google access (GCP) or a private endpoint (Azure)",
    references=("CKV_GCP_74", "GCP-0075", "CKV2_AZURE_33", "EKS best practices: cost, networking"),
    severity="medium",
    levels=FROM_STAGING,
    stack={
        VPC: missing_companion(
            (VPC,),
            ("aws:ec2/vpcEndpoint:VpcEndpoint",),
            "vpcId",
            "the network has no endpoint for S3",
            counts=_store_endpoint,
        ),
        GCP_SUBNET: no_private_google_access,
        AZURE_STORAGE: missing_companion(
            (AZURE_STORAGE,),
            ("azure-native:network:PrivateEndpoint",),
            "privateLinkServiceConnections",
            "the account has no private endpoint",
            exempt=_not_for_nodes,
        ),
    },
)
KNOWN_EGRESS = Rule(
    name="known-way-out",
    statement=(
        "Nodes reach the internet through a gateway of the platform, not from a default outbound address."
    ),
    reason=(
        "A default outbound address can go to another customer at any time, so no partner can put it on an "
        "allowlist."
    ),
    fix=(
        "use outboundType userAssignedNATGateway or userDefinedRouting, and a subnet with a NAT gateway or "
        "defaultOutboundAccess off"
    ),
    references=("Azure: default outbound access is being retired", "AKS: outbound types"),
    severity="low",
    levels=FROM_STAGING,
    checks={
        AKS: one_of(
            "networkProfile.outboundType",
            ("userAssignedNATGateway", "managedNATGateway", "userDefinedRouting", "none"),
        ),
        AZURE_SUBNET: default_outbound,
    },
)
RULES = (
    NETWORK_LOGGED,
    NO_DEFAULT_NETWORK,
    SUBNET_GROUPS,
    POLICIES_ENFORCED,
    NAMESPACES_CLOSED,
    POD_ADDRESSES,
    PRIVATE_STORES,
    KNOWN_EGRESS,
)
