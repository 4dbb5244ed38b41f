"""Exposure: control planes, buckets, nodes, ports, services and stores that are reachable from outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainfleet.policies.engine.accessors import (
    absent,
    at,
    is_true,
    listed,
    not_false,
    not_true,
    numbered,
    true,
)
from trainfleet.policies.engine.address_ranges import open_ranges
from trainfleet.policies.engine.rule import UNKNOWN, Json, Resource, Rule, Violation
from trainfleet.policies.resource_types import (
    AKS,
    AKS_NODES,
    AWS_SUBNET,
    EC2,
    EKS,
    EKS_NODES,
    GCP_FIREWALL,
    GCP_INSTANCE,
    GKE,
    GKE_NODES,
    LAUNCH_TEMPLATE,
    NSG,
    NSG_RULE,
    SERVICE,
)
from trainfleet.policies.store_access import CLOSED_STORES, NO_PUBLIC_BUCKET, TLS_ONLY_BUCKET, UNIFORM_BUCKET

ANYWHERE = {"*", "internet", "any"}
"""Source prefixes, in lower case, that mean the whole internet in Azure rules."""


SHOWN = 4
"""How many address ranges a message names."""


INTERNAL_BALANCER = {
    "service.beta.kubernetes.io/aws-load-balancer-scheme": "internal",
    "service.beta.kubernetes.io/aws-load-balancer-internal": "true",
    "networking.gke.io/load-balancer-type": "Internal",
    "cloud.google.com/load-balancer-type": "Internal",
    "service.beta.kubernetes.io/azure-load-balancer-internal": "true",
}


def eks_endpoint(resource: Resource) -> Iterable[Violation]:
    config = resource.props.get("vpcConfig") or {}
    if not config.get("endpointPublicAccess", True):
        return
    ranges = listed(config.get("publicAccessCidrs"))
    if not ranges:
        yield Violation(
            "vpcConfig.endpointPublicAccess is on and vpcConfig.publicAccessCidrs does not restrict access"
        )
    yield from _unrestricted("vpcConfig.publicAccessCidrs", ranges)


def gke_endpoint(resource: Resource) -> Iterable[Violation]:
    """The DNS endpoint is not checked: Google's front end lets in only whom IAM grants
    container.clusters.connect (GKE documentation, control plane isolation).
    """
    by_address = at(resource.props, "controlPlaneEndpointsConfig.ipEndpointsConfig.enabled")
    if (by_address is not None and not is_true(by_address)) or is_true(
        at(resource.props, "privateClusterConfig.enablePrivateEndpoint")
    ):
        return
    allowed = resource.props.get("masterAuthorizedNetworksConfig")
    if allowed is None:
        yield Violation("masterAuthorizedNetworksConfig is missing, so the endpoint is open to the internet")
        return
    yield from _unrestricted(
        "masterAuthorizedNetworksConfig.cidrBlocks",
        [block.get("cidrBlock") for block in listed(allowed.get("cidrBlocks"))],
    )
    if is_true(allowed.get("gcpPublicCidrsAccessEnabled")):
        yield Violation(
            "masterAuthorizedNetworksConfig.gcpPublicCidrsAccessEnabled is true, "
            "which allows every Google Cloud machine"
        )


def aks_endpoint(resource: Resource) -> Iterable[Violation]:
    profile = resource.props.get("apiServerAccessProfile") or {}
    if (
        is_true(profile.get("enablePrivateCluster"))
        or resource.props.get("publicNetworkAccess") == "Disabled"
    ):
        return
    ranges = listed(profile.get("authorizedIPRanges"))
    if not ranges:
        yield Violation(
            "apiServerAccessProfile.enablePrivateCluster is off "
            "and apiServerAccessProfile.authorizedIPRanges does not restrict access"
        )
    yield from _unrestricted("apiServerAccessProfile.authorizedIPRanges", ranges)


def _unrestricted(where: str, ranges: list[Json]) -> Iterator[Violation]:
    if found := open_ranges(ranges):
        yield Violation(f"{where} includes {_shortened(found)}")


def inline_ingress(resource: Resource) -> Iterable[Violation]:
    for where, rule in numbered("ingress", resource.props.get("ingress")):
        yield from _open_ranges(where, [*listed(rule.get("cidrBlocks")), *listed(rule.get("ipv6CidrBlocks"))])


def ingress_rule(resource: Resource) -> Iterable[Violation]:
    for name in ("cidrIpv4", "cidrIpv6"):
        yield from _open_ranges(name, listed(resource.props.get(name)))


def group_rule(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("type") == "ingress":
        yield from _open_ranges(
            "cidrBlocks",
            [*listed(resource.props.get("cidrBlocks")), *listed(resource.props.get("ipv6CidrBlocks"))],
        )


def firewall(resource: Resource) -> Iterable[Violation]:
    """A firewall rule is inbound by default, and allows every source if it names none."""
    if (
        str(resource.props.get("direction") or "INGRESS") == "EGRESS"
        or not listed(resource.props.get("allows"))
        or is_true(resource.props.get("disabled"))
    ):
        return
    sources = [resource.props.get(name) for name in ("sourceRanges", "sourceTags", "sourceServiceAccounts")]
    if all(source is None for source in sources):
        yield Violation("sourceRanges is missing, so the rule allows 0.0.0.0/0")
    yield from _open_ranges("sourceRanges", listed(sources[0]))


def security_rule(resource: Resource) -> Iterable[Violation]:
    yield from _azure_rule("", resource.props)


def group_of_rules(resource: Resource) -> Iterable[Violation]:
    for where, rule in numbered("securityRules", resource.props.get("securityRules")):
        yield from _azure_rule(f"{where}.", rule)


def _azure_rule(where: str, rule: Json) -> Iterator[Violation]:
    if rule.get("access") == "Allow" and rule.get("direction") == "Inbound":
        sources = [*listed(rule.get("sourceAddressPrefix")), *listed(rule.get("sourceAddressPrefixes"))]
        tags = [str(source) for source in sources if source is not UNKNOWN]
        if found := [tag for tag in tags if tag.lower() in ANYWHERE] or open_ranges(sources):
            yield Violation(f"{where}sourceAddressPrefix allows traffic from {_shortened(found)}")


def _open_ranges(where: str, ranges: list[Json]) -> Iterator[Violation]:
    if found := open_ranges(ranges):
        yield Violation(f"{where} allows traffic from {_shortened(found)}")


def _shortened(ranges: list[str]) -> str:
    shown = ", ".join(ranges[:SHOWN])
    return shown if len(ranges) <= SHOWN else f"{shown} and {len(ranges) - SHOWN} more"


def template_addresses(resource: Resource) -> Iterable[Violation]:
    for where, interface in numbered("networkInterfaces", resource.props.get("networkInterfaces")):
        if is_true(interface.get("associatePublicIpAddress")):
            yield Violation(f"{where}.associatePublicIpAddress is true")


def gcp_addresses(resource: Resource) -> Iterable[Violation]:
    for where, interface in numbered("networkInterfaces", resource.props.get("networkInterfaces")):
        if interface.get("accessConfigs") is not None:
            yield Violation(f"{where}.accessConfigs assigns a public IP address")


def aks_inline_addresses(resource: Resource) -> Iterable[Violation]:
    for where, pool in numbered("agentPoolProfiles", resource.props.get("agentPoolProfiles")):
        if is_true(pool.get("enableNodePublicIP")):
            yield Violation(f"{where}.enableNodePublicIP is true")


def public_service(resource: Resource) -> Iterable[Violation]:
    spec = resource.props.get("spec") or {}
    if spec.get("type") == "NodePort":
        yield Violation("spec.type is NodePort, which opens a port on every node")
    if spec.get("type") != "LoadBalancer":
        return
    annotations = at(resource.props, "metadata.annotations") or {}
    if any(
        name in annotations and annotations[name] is not UNKNOWN and str(annotations[name]) == value
        for name, value in INTERNAL_BALANCER.items()
    ):
        return
    ranges = listed(spec.get("loadBalancerSourceRanges"))
    if not ranges or open_ranges(ranges):
        yield Violation(
            "spec.type is LoadBalancer without an internal load balancer annotation "
            "or source ranges in spec.loadBalancerSourceRanges"
        )


NO_OPEN_CONTROL_PLANE = Rule(
    name="no-open-control-plane",
    statement="The control plane is reachable only inside the network or from named address ranges.",
    reason=(
        "If the whole internet can reach the endpoint, one stolen token or unpatched flaw is enough to take "
        "over the cluster."
    ),
    fix="list the ranges in kubernetes.access.public_ranges, or set kubernetes.access.endpoint: private",
    references=(
        "CIS EKS 5.4.1, 5.4.2",
        "CKV_AWS_38",
        "CKV_AWS_39",
        "AWS-0040",
        "AWS-0041",
        "CKV_GCP_18",
        "CKV_GCP_20",
        "GCP-0053",
        "GCP-0061",
        "CKV_AZURE_6",
        "CKV_AZURE_115",
        "AZU-0041",
        "AZU-0065",
    ),
    severity="critical",
    checks={EKS: eks_endpoint, GKE: gke_endpoint, AKS: aks_endpoint},
)


NO_OPEN_INGRESS = Rule(
    name="no-open-ingress",
    statement="No firewall rule allows inbound traffic from the whole internet.",
    reason="An open port is found within minutes, and an open Ray dashboard runs anyone's code.",
    fix="list the source ranges or security groups that need access",
    references=(
        "CIS AWS 5.2",
        "CKV_AWS_24",
        "CKV_AWS_277",
        "AWS-0107",
        "CKV_AZURE_10",
        "AZU-0050",
        "CKV_GCP_2",
    ),
    severity="critical",
    checks={
        "aws:ec2/securityGroup:SecurityGroup": inline_ingress,
        "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": ingress_rule,
        "aws:ec2/securityGroupRule:SecurityGroupRule": group_rule,
        GCP_FIREWALL: firewall,
        NSG: group_of_rules,
        NSG_RULE: security_rule,
    },
)


NO_PUBLIC_NODE = Rule(
    name="no-public-node",
    statement="No machine has a public IP address.",
    reason=(
        "One open port is enough to attack a publicly reachable node; outbound traffic can use the NAT "
        "gateway."
    ),
    fix="put nodes in private subnets and disable public IP addresses",
    references=("CKV_AWS_130", "AWS-0164", "CKV_GCP_64", "CKV_GCP_25", "GCP-0059", "CKV_AZURE_143"),
    severity="high",
    checks={
        AWS_SUBNET: not_true("mapPublicIpOnLaunch"),
        LAUNCH_TEMPLATE: template_addresses,
        EC2: not_true("associatePublicIpAddress"),
        GKE: true("privateClusterConfig.enablePrivateNodes"),
        GKE_NODES: not_false("networkConfig.enablePrivateNodes"),
        GCP_INSTANCE: gcp_addresses,
        AKS: aks_inline_addresses,
        AKS_NODES: not_true("enableNodePublicIP"),
    },
)


NO_SSH = Rule(
    name="no-ssh-to-nodes",
    statement="Nodes accept no SSH keys; people use the cloud's session service instead.",
    reason="A key on every node opens all of them, is not tied to a person and does not expire.",
    fix="remove the key pair; use Session Manager, IAP or `kubectl debug`",
    references=("CKV_AWS_100", "CKV_GCP_32", "EKS best practices: minimize access to worker nodes"),
    severity="medium",
    checks={
        EKS_NODES: absent("remoteAccess.ec2SshKey"),
        LAUNCH_TEMPLATE: absent("keyName"),
        GKE_NODES: absent("nodeConfig.metadata.ssh-keys"),
        AKS: absent("linuxProfile.ssh"),
    },
)


NO_PUBLIC_SERVICE = Rule(
    name="no-public-service",
    statement="No cluster service is exposed to the internet.",
    reason="A load balancer in front of Ray or Grafana gives a shell to anyone who finds it.",
    fix=(
        "use a ClusterIP service with `kubectl port-forward` or an internal load balancer, or list the "
        "source ranges"
    ),
    references=("Kubernetes security checklist: network security", "Ray: security"),
    severity="high",
    checks={SERVICE: public_service},
)


RULES = (
    NO_OPEN_CONTROL_PLANE,
    NO_PUBLIC_BUCKET,
    UNIFORM_BUCKET,
    TLS_ONLY_BUCKET,
    NO_OPEN_INGRESS,
    NO_PUBLIC_NODE,
    NO_SSH,
    CLOSED_STORES,
    NO_PUBLIC_SERVICE,
)
