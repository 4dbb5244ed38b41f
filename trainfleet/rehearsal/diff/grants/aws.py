"""What AWS resources allow: IAM policies, policies of resources, security groups and access to clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trainfleet.rehearsal.diff.grants.documents import grants_of
from trainfleet.rehearsal.diff.grants.model import ANYWHERE, Grant, Index, Kind, Planned, listed, ports

HOLDERS = {"role": "role", "user": "user", "group": "group"}
RESOURCE_POLICIES = {
    "aws:s3/bucketPolicy:BucketPolicy": ("bucket", "policy", "bucket"),
    "aws:kms/keyPolicy:KeyPolicy": ("keyId", "policy", "key"),
    "aws:sns/topicPolicy:TopicPolicy": ("arn", "policy", "topic"),
    "aws:sqs/queuePolicy:QueuePolicy": ("queueUrl", "policy", "queue"),
    "aws:ecr/repositoryPolicy:RepositoryPolicy": ("repository", "policy", "repository"),
    "aws:secretsmanager/secretPolicy:SecretPolicy": ("secretArn", "policy", "secret"),
    "aws:efs/fileSystemPolicy:FileSystemPolicy": ("fileSystemId", "policy", "file system"),
    "aws:opensearch/domainPolicy:DomainPolicy": ("domainName", "accessPolicies", "domain"),
}
"""Type to the property with the resource, the property with the document, and what the resource is."""
OWN_POLICIES = {
    "aws:kms/key:Key": "policy",
    "aws:s3/bucket:Bucket": "policy",
    "aws:ec2/vpcEndpoint:VpcEndpoint": "policy",
    "aws:sqs/queue:Queue": "policy",
    "aws:sns/topic:Topic": "policy",
    "aws:secretsmanager/secret:Secret": "policy",
}
"""Type to the property with its own document."""
_BLOCKS = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")


def grants(resource: Planned, index: Index) -> Iterator[Grant]:
    """Yield what an AWS resource allows."""
    token, inputs = resource.token, resource.inputs
    if token in RESOURCE_POLICIES:
        target, document, noun = RESOURCE_POLICIES[token]
        yield from grants_of(inputs.get(document), index, on=index.shown(inputs.get(target), noun))
    if token in OWN_POLICIES:
        yield from grants_of(inputs.get(OWN_POLICIES[token]), index, on=resource.shown)
    if token in _READERS:
        yield from _READERS[token](resource, index)


def _inline(resource: Planned, index: Index) -> Iterator[Grant]:
    kind = next(name for name in HOLDERS if resource.token.startswith(f"aws:iam/{name}"))
    holder = index.shown(resource.inputs.get(kind), kind)
    yield from grants_of(resource.inputs.get("policy"), index, who=holder)


def _attached(resource: Planned, index: Index) -> Iterator[Grant]:
    for kind in HOLDERS:
        for value in [*listed(resource.inputs.get(kind)), *listed(resource.inputs.get(f"{kind}s"))]:
            yield from _managed(index.shown(value, kind), resource.inputs.get("policyArn"), index)


def _managed(holder: str, arn: Any, index: Index) -> Iterator[Grant]:
    policy = index.find(arn)
    if policy is not None and policy.token == "aws:iam/policy:Policy":
        yield from grants_of(policy.inputs.get("policy"), index, who=holder)
    else:
        yield Grant(Kind.ROLE, holder, index.shown(arn, "policy"), "")


def _role(resource: Planned, index: Index) -> Iterator[Grant]:
    yield from grants_of(resource.inputs.get("assumeRolePolicy"), index, on=resource.shown)
    for inline in listed(resource.inputs.get("inlinePolicies")):
        if isinstance(inline, dict):
            yield from grants_of(inline.get("policy"), index, who=resource.shown)
    for arn in listed(resource.inputs.get("managedPolicyArns")):
        yield from _managed(resource.shown, arn, index)


def _public_access_block(resource: Planned, index: Index) -> Iterator[Grant]:
    bucket = index.shown(resource.inputs.get("bucket"), "bucket")
    for flag in _BLOCKS:
        if resource.inputs.get(flag):
            yield Grant(Kind.BLOCK, "anyone", f"public access ({flag})", bucket)


def _access_entry(resource: Planned, index: Index) -> Iterator[Grant]:
    inputs = resource.inputs
    who, cluster = (
        index.shown(inputs.get("principalArn")),
        index.shown(inputs.get("clusterName"), "cluster"),
    )
    yield Grant(Kind.ROLE, who, f"an access entry of type {inputs.get('type') or 'STANDARD'}", cluster)
    for group in listed(inputs.get("kubernetesGroups")):
        yield Grant(Kind.ROLE, who, f"the Kubernetes group {index.shown(group)}", cluster)


def _access_policy(resource: Planned, index: Index) -> Iterator[Grant]:
    inputs = resource.inputs
    scope = inputs.get("accessScope") or {}
    spaces = listed(scope.get("namespaces")) if isinstance(scope, dict) else []
    cluster = index.shown(inputs.get("clusterName"), "cluster")
    where = f"namespace {', '.join(map(str, spaces))} of {cluster}" if spaces else cluster
    name = index.shown(inputs.get("policyArn")).rsplit("/", 1)[-1]
    yield Grant(Kind.ROLE, index.shown(inputs.get("principalArn")), name, where)


def _pod_identity(resource: Planned, index: Index) -> Iterator[Grant]:
    inputs = resource.inputs
    account = f"{index.shown(inputs.get('namespace'))}/{index.shown(inputs.get('serviceAccount'))}"
    who = f"service account {account} of {index.shown(inputs.get('clusterName'), 'cluster')}"
    yield Grant(Kind.ALLOW, who, "sts:AssumeRole", index.shown(inputs.get("roleArn"), "role"))


def _cluster(resource: Planned, index: Index) -> Iterator[Grant]:
    settings = resource.inputs.get("vpcConfig") or {}
    if isinstance(settings, dict) and settings.get("endpointPublicAccess") is not False:
        for source in listed(settings.get("publicAccessCidrs")) or [ANYWHERE]:
            yield Grant(Kind.INGRESS, index.shown(source), "tcp 443", f"the API server of {resource.shown}")


def _single_rule(resource: Planned, index: Index) -> Iterator[Grant]:
    inputs = resource.inputs
    kind = Kind.EGRESS if "Egress" in resource.token else Kind.INGRESS
    group = index.shown(inputs.get("securityGroupId"), "security group")
    what = ports(inputs.get("ipProtocol"), inputs.get("fromPort"), inputs.get("toPort"))
    for key in ("cidrIpv4", "cidrIpv6", "referencedSecurityGroupId", "prefixListId"):
        if inputs.get(key):
            yield Grant(kind, index.shown(inputs[key]), what, group)


def _group(resource: Planned, index: Index) -> Iterator[Grant]:
    for kind, key in ((Kind.INGRESS, "ingress"), (Kind.EGRESS, "egress")):
        for rule in listed(resource.inputs.get(key)):
            if isinstance(rule, dict):
                yield from _block(rule, kind, resource.shown, index)
            else:
                yield Grant(Kind.UNRESOLVED, "somebody", f"{key}: {index.shown(rule)}", resource.shown)


def _old_rule(resource: Planned, index: Index) -> Iterator[Grant]:
    kind = Kind.EGRESS if resource.inputs.get("type") == "egress" else Kind.INGRESS
    group = index.shown(resource.inputs.get("securityGroupId"), "security group")
    yield from _block(dict(resource.inputs), kind, group, index)


def _block(rule: dict[str, Any], kind: Kind, group: str, index: Index) -> Iterator[Grant]:
    what = ports(rule.get("protocol"), rule.get("fromPort"), rule.get("toPort"))
    for key in ("cidrBlocks", "ipv6CidrBlocks", "securityGroups", "sourceSecurityGroupId", "prefixListIds"):
        for source in listed(rule.get(key)):
            yield Grant(kind, index.shown(source), what, group)
    if rule.get("self"):
        yield Grant(kind, group, what, group)


_READERS: dict[str, Callable[[Planned, Index], Iterator[Grant]]] = {
    **dict.fromkeys((f"aws:iam/{kind}Policy:{kind.title()}Policy" for kind in HOLDERS), _inline),
    **dict.fromkeys(
        (f"aws:iam/{kind}PolicyAttachment:{kind.title()}PolicyAttachment" for kind in HOLDERS), _attached
    ),
    "aws:iam/policyAttachment:PolicyAttachment": _attached,
    "aws:iam/role:Role": _role,
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": _public_access_block,
    "aws:eks/accessEntry:AccessEntry": _access_entry,
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": _access_policy,
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": _pod_identity,
    "aws:eks/cluster:Cluster": _cluster,
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": _single_rule,
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": _single_rule,
    "aws:ec2/securityGroup:SecurityGroup": _group,
    "aws:ec2/securityGroupRule:SecurityGroupRule": _old_rule,
}
