"""Exposure: what answers to whom from outside. Control planes, buckets, nodes, ports, services and stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainfleet.policies.engine.accessors import (
    WORLD,
    absent,
    at,
    false,
    is_true,
    listed,
    missing_companion,
    not_false,
    not_true,
    numbered,
    one_of,
    statements,
    true,
)
from trainfleet.policies.engine.rule import UNKNOWN, Json, Resource, Rule, Violation
from trainfleet.policies.resource_types import (
    ACR,
    AKS,
    AKS_NODES,
    AWS_SUBNET,
    AZURE_STORAGE,
    BLOB_CONTAINER,
    EC2,
    EKS,
    EKS_NODES,
    GCP_FIREWALL,
    GCP_INSTANCE,
    GCS,
    GKE,
    GKE_NODES,
    LAUNCH_TEMPLATE,
    NSG,
    NSG_RULE,
    S3,
    S3_BLOCK,
    S3_POLICY,
    SERVICE,
    VAULT,
)

BLOCKS = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
OPEN_ACLS = {"public-read", "public-read-write", "authenticated-read"}
OPEN_GROUPS = ("AllUsers", "AuthenticatedUsers")
EVERYBODY = {"allUsers", "allAuthenticatedUsers"}
ANYWHERE = {*WORLD, "*", "Internet", "internet", "Any", "any"}
"""How Azure's rules say the whole internet."""
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
            "vpcConfig.endpointPublicAccess is on and vpcConfig.publicAccessCidrs does not restrict it"
        )
    yield from _world("vpcConfig.publicAccessCidrs", ranges)


def gke_endpoint(resource: Resource) -> Iterable[Violation]:
    if is_true(at(resource.props, "controlPlaneEndpointsConfig.dnsEndpointConfig.allowExternalTraffic")):
        yield Violation(
            "controlPlaneEndpointsConfig.dnsEndpointConfig.allowExternalTraffic is true, so the endpoint answers the whole internet"
        )
    by_address = at(resource.props, "controlPlaneEndpointsConfig.ipEndpointsConfig.enabled")
    if (by_address is not None and not is_true(by_address)) or is_true(
        at(resource.props, "privateClusterConfig.enablePrivateEndpoint")
    ):
        return
    allowed = resource.props.get("masterAuthorizedNetworksConfig")
    if allowed is None:
        yield Violation(
            "masterAuthorizedNetworksConfig is missing, so the endpoint answers the whole internet"
        )
        return
    yield from _world(
        "masterAuthorizedNetworksConfig.cidrBlocks",
        [block.get("cidrBlock") for block in listed(allowed.get("cidrBlocks"))],
    )
    if is_true(allowed.get("gcpPublicCidrsAccessEnabled")):
        yield Violation(
            "masterAuthorizedNetworksConfig.gcpPublicCidrsAccessEnabled is true, which lets in every machine of Google Cloud"
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
            "apiServerAccessProfile.enablePrivateCluster is off and apiServerAccessProfile.authorizedIPRanges does not restrict it"
        )
    yield from _world("apiServerAccessProfile.authorizedIPRanges", ranges)


def _world(where: str, ranges: list[Json]) -> Iterator[Violation]:
    if found := WORLD & set(ranges):
        yield Violation(f"{where} holds {', '.join(sorted(found))}")


def public_acl(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("acl") in OPEN_ACLS:
        yield Violation(f"acl is {resource.props['acl']}")
    policy = resource.props.get("accessControlPolicy") or {}
    for grant in listed(policy.get("grants")):
        uri = (grant.get("grantee") or {}).get("uri") or ""
        if uri.endswith(OPEN_GROUPS):
            yield Violation(
                f"accessControlPolicy grants {grant.get('permission')} to {uri.rpartition('/')[2]}"
            )


def open_block(resource: Resource) -> Iterable[Violation]:
    for flag in BLOCKS:
        if not is_true(resource.props.get(flag)):
            yield Violation(f"{flag} is not true")


def public_entity(resource: Resource) -> Iterable[Violation]:
    entity = resource.props.get("entity")
    if entity in EVERYBODY:
        yield Violation(f"entity is {entity}")


def plain_http(resource: Resource) -> Iterable[Violation]:
    if not _denies_plain_http(resource.props.get("policy")):
        yield Violation(
            "policy has no statement that denies every principal all of s3 when aws:SecureTransport is false"
        )


def _denies_plain_http(policy: Json) -> bool:
    for statement in statements(policy):
        condition = (statement.get("Condition") or {}).get("Bool") or {}
        principal = statement.get("Principal")
        if (
            statement.get("Effect") == "Deny"
            and (principal == "*" or (isinstance(principal, dict) and "*" in listed(principal.get("AWS"))))
            and {"s3:*", "*"} & set(listed(statement.get("Action")))
            and [str(value).lower() for value in listed(condition.get("aws:SecureTransport"))] == ["false"]
        ):
            return True
    return False


def azure_transport(resource: Resource) -> Iterable[Violation]:
    """A file share by NFS has no HTTPS to ask for: it is closed by its network instead."""
    nfs = (
        resource.props.get("kind") == "FileStorage"
        and resource.props.get("publicNetworkAccess") == "Disabled"
    )
    if not nfs and not is_true(resource.props.get("enableHttpsTrafficOnly", True)):
        yield Violation("enableHttpsTrafficOnly is not true")
    if resource.props.get("minimumTlsVersion") not in ("TLS1_2", "TLS1_3"):
        yield Violation("minimumTlsVersion is not `TLS1_2` or `TLS1_3`")


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
    """A firewall rule is inbound unless it says otherwise, and lets in everybody where it names no source."""
    if (
        str(resource.props.get("direction") or "INGRESS") == "EGRESS"
        or not listed(resource.props.get("allows"))
        or is_true(resource.props.get("disabled"))
    ):
        return
    sources = [resource.props.get(name) for name in ("sourceRanges", "sourceTags", "sourceServiceAccounts")]
    if all(source is None for source in sources):
        yield Violation("sourceRanges is missing, so it allows from 0.0.0.0/0")
    yield from _open_ranges("sourceRanges", listed(sources[0]))


def security_rule(resource: Resource) -> Iterable[Violation]:
    yield from _azure_rule("", resource.props)


def group_of_rules(resource: Resource) -> Iterable[Violation]:
    for where, rule in numbered("securityRules", resource.props.get("securityRules")):
        yield from _azure_rule(f"{where}.", rule)


def _azure_rule(where: str, rule: Json) -> Iterator[Violation]:
    if rule.get("access") == "Allow" and rule.get("direction") == "Inbound":
        sources = [*listed(rule.get("sourceAddressPrefix")), *listed(rule.get("sourceAddressPrefixes"))]
        if found := ANYWHERE & set(sources):
            yield Violation(f"{where}sourceAddressPrefix allows from {', '.join(sorted(found))}")


def _open_ranges(where: str, ranges: list[Json]) -> Iterator[Violation]:
    if found := WORLD & set(ranges):
        yield Violation(f"{where} allows from {', '.join(sorted(found))}")


def template_addresses(resource: Resource) -> Iterable[Violation]:
    for where, interface in numbered("networkInterfaces", resource.props.get("networkInterfaces")):
        if is_true(interface.get("associatePublicIpAddress")):
            yield Violation(f"{where}.associatePublicIpAddress is true")


def gcp_addresses(resource: Resource) -> Iterable[Violation]:
    for where, interface in numbered("networkInterfaces", resource.props.get("networkInterfaces")):
        if interface.get("accessConfigs") is not None:
            yield Violation(f"{where}.accessConfigs gives the machine a public address")


def aks_inline_addresses(resource: Resource) -> Iterable[Violation]:
    for where, pool in numbered("agentPoolProfiles", resource.props.get("agentPoolProfiles")):
        if is_true(pool.get("enableNodePublicIP")):
            yield Violation(f"{where}.enableNodePublicIP is true")


def closed_store(resource: Resource) -> Iterable[Violation]:
    """An Azure store that takes requests from named networks only, or by its private endpoint only."""
    props = resource.props.get("properties") if resource.kind == VAULT else resource.props
    rules = "networkAcls" if resource.kind == VAULT else "networkRuleSet"
    where = "properties." if resource.kind == VAULT else ""
    access = at(props, "publicNetworkAccess")
    if access is not None and str(access).lower() == "disabled":
        return
    if at(props, f"{rules}.defaultAction") != "Deny":
        yield Violation(
            f"{where}publicNetworkAccess is not `Disabled` and {where}{rules}.defaultAction is not `Deny`"
        )


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
    if not ranges or WORLD & set(ranges):
        yield Violation(
            "spec.type is LoadBalancer without an internal address or named ranges in spec.loadBalancerSourceRanges"
        )


NO_OPEN_CONTROL_PLANE = Rule(
    name="no-open-control-plane",
    statement="The control plane answers inside the network, or to named address ranges only.",
    reason="An endpoint that the whole internet reaches needs one stolen token or one unpatched flaw, and the cluster is somebody else's.",
    fix="set kubernetes.private_endpoint: true, or name the ranges in network.allowed_cidrs",
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
NO_PUBLIC_BUCKET = Rule(
    name="no-public-bucket",
    statement="No bucket can be made public, by access list or by policy.",
    reason="Data sets and checkpoints in a bucket that anybody can read are the most common leak there is, and nobody notices it.",
    fix="turn on the cloud's block of public access (S3: all four flags; GCS: publicAccessPrevention enforced; Azure: allowBlobPublicAccess false)",
    references=(
        "CIS AWS 2.1.4",
        "CKV_AWS_53",
        "CKV_AWS_54",
        "CKV_AWS_55",
        "CKV_AWS_56",
        "CKV2_AWS_6",
        "AWS-0086",
        "CKV_GCP_114",
        "GCP-0001",
        "CKV_AZURE_59",
        "CKV_AZURE_190",
        "AZU-0007",
    ),
    severity="critical",
    checks={
        **dict.fromkeys(S3, public_acl),
        "aws:s3/bucketAcl:BucketAcl": public_acl,
        S3_BLOCK: open_block,
        GCS: one_of("publicAccessPrevention", ("enforced",)),
        "gcp:storage/bucketAccessControl:BucketAccessControl": public_entity,
        AZURE_STORAGE: false("allowBlobPublicAccess"),
        BLOB_CONTAINER: one_of("publicAccess", ("None", "none")),
    },
    stack=dict.fromkeys(
        S3, missing_companion(S3, (S3_BLOCK,), "bucket", "the bucket has no public access block")
    ),
)
UNIFORM_BUCKET = Rule(
    name="one-way-into-buckets",
    statement="Access to a bucket is defined in one place, not again on each object.",
    reason="An access list on a single object outlives every review of the bucket's own rules.",
    fix="set uniformBucketLevelAccess (GCS) or objectOwnership BucketOwnerEnforced (S3)",
    references=("CKV_GCP_29", "GCP-0002", "Security Hub S3.12"),
    severity="medium",
    checks={
        GCS: true("uniformBucketLevelAccess"),
        "aws:s3/bucketOwnershipControls:BucketOwnershipControls": one_of(
            "rule.objectOwnership", ("BucketOwnerEnforced",)
        ),
    },
)
TLS_ONLY_BUCKET = Rule(
    name="tls-only-bucket",
    statement="A bucket refuses requests that do not come by TLS.",
    reason="A request in the clear shows its data and its signature to everybody on the way.",
    fix='S3: deny Principal "*" all of s3 when aws:SecureTransport is false, on the bucket and its objects; Azure: HTTPS only and TLS 1.2',
    references=(
        "CIS AWS 2.1.1",
        "CKV_AWS_379",
        "Security Hub S3.5",
        "CKV_AZURE_3",
        "CKV_AZURE_44",
        "AZU-0008",
        "AZU-0011",
    ),
    severity="high",
    checks={S3_POLICY: plain_http, AZURE_STORAGE: azure_transport},
    stack=dict.fromkeys(
        S3,
        missing_companion(
            S3, (S3_POLICY,), "bucket", "the bucket has no bucket policy, so nothing refuses plain HTTP"
        ),
    ),
)
NO_OPEN_INGRESS = Rule(
    name="no-open-ingress",
    statement="No firewall rule lets the whole internet in.",
    reason="A port that is open to everybody is found within minutes; Ray's dashboard on such a port runs anybody's code.",
    fix="name the ranges or the groups that may come in",
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
    statement="No machine has a public address.",
    reason="A node that can be reached from outside needs only one open port; what it must fetch, it fetches through the NAT gateway.",
    fix="put nodes into private subnets and turn public addresses off",
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
    statement="Nodes take no SSH keys: people reach them through the cloud's own session service or not at all.",
    reason="A key on every node opens all of them, is not tied to a person and never ends.",
    fix="leave the key pair out; use Session Manager, IAP or `kubectl debug`",
    references=("CKV_AWS_100", "CKV_GCP_32", "EKS best practices: minimize access to worker nodes"),
    severity="medium",
    checks={
        EKS_NODES: absent("remoteAccess.ec2SshKey"),
        LAUNCH_TEMPLATE: absent("keyName"),
        GKE_NODES: absent("nodeConfig.metadata.ssh-keys"),
        AKS: absent("linuxProfile.ssh"),
    },
)
CLOSED_STORES = Rule(
    name="closed-stores",
    statement="Stores of data, secrets and images take requests from the platform's network only.",
    reason="A store that every network reaches is one leaked key away from being copied.",
    fix="turn public network access off and give the store a private endpoint, or deny by default and name the ranges",
    references=("CKV_AZURE_35", "AZU-0012", "CKV_AZURE_109", "AZU-0013", "CKV_AZURE_139"),
    severity="high",
    levels={"dev": "advisory"},
    checks={AZURE_STORAGE: closed_store, VAULT: closed_store, ACR: closed_store},
)
NO_PUBLIC_SERVICE = Rule(
    name="no-public-service",
    statement="No service of the cluster is given to the internet.",
    reason="A load balancer in front of Ray or Grafana is a shell for anyone who finds it.",
    fix="use a ClusterIP service and `kubectl port-forward`, or an internal load balancer, or name the ranges",
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
