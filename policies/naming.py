"""Naming: tags and names that show the platform, the environment and the owner.

Tags (AWS, Azure) and labels (Google) are checked as inputs of each resource, because policies do not see a
provider's default tags. Google labels allow only lower case letters, digits, `-` and `_`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainfleet.policies.engine.accessors import at, document, listed
from trainfleet.policies.engine.rule import ENVIRONMENTS, UNKNOWN, Json, Resource, Rule, Violation
from trainfleet.policies.resource_types import (
    ACR,
    AKS,
    AKS_NODES,
    AWS_BUDGET,
    AWS_ROLE,
    AWS_SECRET,
    AWS_SUBNET,
    AZURE_LUSTRE,
    AZURE_STORAGE,
    CLOUD_CONTROL,
    EC2,
    ECR,
    EFS,
    EKS,
    EKS_ADDON,
    EKS_NODES,
    FILESTORE,
    FSX,
    GCP_DISK,
    GCP_IMAGES,
    GCP_INSTANCE,
    GCP_KEY,
    GCP_LUSTRE,
    GCP_SECRET,
    GCS,
    GKE,
    GKE_NODES,
    KMS_KEY,
    LAUNCH_TEMPLATE,
    LOG_GROUP,
    NSG,
    S3,
    VAULT,
    VNET,
    VPC,
    WORKSPACE,
)

PLATFORM, ENVIRONMENT, OWNER = "trainfleet:platform", "trainfleet:environment", "trainfleet:owner"
REQUIRED = (PLATFORM, ENVIRONMENT, OWNER)
AWS_TAGGABLE = (
    LOG_GROUP,
    "aws:ebs/volume:Volume",
    "aws:ec2/eip:Eip",
    "aws:ec2/flowLog:FlowLog",
    EC2,
    "aws:ec2/internetGateway:InternetGateway",
    LAUNCH_TEMPLATE,
    "aws:ec2/natGateway:NatGateway",
    "aws:ec2/placementGroup:PlacementGroup",
    "aws:ec2/routeTable:RouteTable",
    "aws:ec2/securityGroup:SecurityGroup",
    AWS_SUBNET,
    VPC,
    "aws:ec2/vpcEndpoint:VpcEndpoint",
    ECR,
    EFS,
    "aws:eks/accessEntry:AccessEntry",
    EKS_ADDON,
    EKS,
    EKS_NODES,
    "aws:eks/podIdentityAssociation:PodIdentityAssociation",
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
    FSX,
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider",
    "aws:iam/policy:Policy",
    AWS_ROLE,
    KMS_KEY,
    *S3,
    AWS_SECRET,
    "aws:sns/topic:Topic",
    "aws:sqs/queue:Queue",
    AWS_BUDGET,
)
AZURE_TAGGABLE = (
    "azure-native:resources:ResourceGroup",
    ACR,
    AKS,
    AKS_NODES,
    AZURE_LUSTRE,
    AZURE_STORAGE,
    "azure-native:compute:DiskEncryptionSet",
    "azure-native:compute:ProximityPlacementGroup",
    "azure-native:managedidentity:UserAssignedIdentity",
    "azure-native:network:NatGateway",
    "azure-native:network:PrivateEndpoint",
    "azure-native:network:PublicIPAddress",
    NSG,
    VAULT,
    VNET,
    WORKSPACE,
)
GCP_LABELLED = {
    GKE: "resourceLabels",
    GKE_NODES: "nodeConfig.resourceLabels",
    GCS: "labels",
    GCP_DISK: "labels",
    GCP_INSTANCE: "labels",
    GCP_KEY: "labels",
    GCP_SECRET: "labels",
    GCP_IMAGES: "labels",
    FILESTORE: "labels",
    GCP_LUSTRE: "labels",
}
SAGEMAKER = "AWS::SageMaker::"


def label(tag: str) -> str:
    """Return the label key for a tag."""
    return tag.replace("trainfleet:", "trainfleet-")


def tags_of(resource: Resource) -> Json:
    """Return the tags or labels of a resource; None if it does not support them."""
    kind = resource.kind
    if kind in GCP_LABELLED:
        return at(resource.props, GCP_LABELLED[kind]) or {}
    if kind == CLOUD_CONTROL:
        if not str(resource.props.get("typeName") or "").startswith(SAGEMAKER):
            return None
        desired = document(resource.props.get("desiredState"))
        listed_tags = listed(desired.get("Tags")) if isinstance(desired, dict) else []
        return {tag.get("Key"): tag.get("Value") for tag in listed_tags if isinstance(tag, dict)}
    return resource.props.get("tags") or {}


def _key(kind: str, tag: str) -> str:
    return label(tag) if kind in GCP_LABELLED else tag


def _tag_value(resource: Resource, tag: str) -> str | None:
    """Return the value of a tag; None if it is missing or not known yet."""
    tags = tags_of(resource)
    value = None if tags is None or tags is UNKNOWN else tags.get(_key(resource.kind, tag))
    return value if isinstance(value, str) else None


def tagged(resource: Resource) -> Iterable[Violation]:
    tags = tags_of(resource)
    if tags is None:
        return
    required_keys = [
        _key(resource.kind, tag) for tag in (*REQUIRED, *listed(resource.settings.get("required")))
    ]
    missing = [tag for tag in required_keys if not tags.get(tag)]
    if missing:
        where = GCP_LABELLED.get(resource.kind, "tags")
        yield Violation(f"{where} lack {', '.join(missing)}")


def named_after_platform(resource: Resource) -> Iterable[Violation]:
    platform = _tag_value(resource, PLATFORM)
    if platform and resource.name != platform and not resource.name.startswith(f"{platform}-"):
        yield Violation(f"the name does not start with `{platform}-`, the platform in its tags")


def known_environment(resource: Resource) -> Iterable[Violation]:
    environment = _tag_value(resource, ENVIRONMENT)
    if environment and environment not in ENVIRONMENTS:
        yield Violation(
            f"{_key(resource.kind, ENVIRONMENT)} is `{environment}`, "
            f"expected one of {', '.join(ENVIRONMENTS)}"
        )


def one_platform(resources: Sequence[Resource]) -> Iterable[Violation]:
    first: tuple[str, str] | None = None
    for resource in resources:
        if resource.kind not in TAGGABLE:
            continue
        platform = _tag_value(resource, PLATFORM)
        if platform is None:
            continue
        first = first or (platform, resource.name)
        if platform != first[0]:
            yield Violation(
                f"its tags name platform `{platform}`, "
                f"but those of {first[1]} in the same stack name `{first[0]}`",
                resource.urn,
                resource.name,
            )


TAGGABLE = (*AWS_TAGGABLE, CLOUD_CONTROL, *GCP_LABELLED, *AZURE_TAGGABLE)
REQUIRED_TAGS = Rule(
    name="required-tags",
    statement="Every resource that supports tags has tags for its platform, environment and owner.",
    reason="Budgets filter by these tags, and they name the owner to ask about an unexpected resource.",
    fix="take the tags from trainfleet.infra.tags",
    references=("AWS Config required-tags", "Google Cloud: labels", "Azure: tag resources"),
    severity="high",
    checks=dict.fromkeys(TAGGABLE, tagged),
    settings={"required": {"type": "array", "items": {"type": "string"}}},
)
PLATFORM_NAMES = Rule(
    name="names-begin-with-platform",
    statement="A resource's name starts with the name of its platform.",
    reason="Logs and policy exceptions tell two platforms in one account apart by name.",
    fix="start the name with the component's `name`",
    references=("Pulumi: resource names", "AWS: best practices for tagging and naming"),
    severity="low",
    checks=dict.fromkeys(TAGGABLE, named_after_platform),
)
KNOWN_ENVIRONMENT = Rule(
    name="known-environment",
    statement="The environment tag is dev, staging or prod.",
    reason=(
        "Policy levels, protection and cost reports depend on this value; an unknown one matches none of "
        "them."
    ),
    fix="take the tags from trainfleet.infra.tags",
    references=("AWS: tagging use cases, environment",),
    severity="medium",
    checks=dict.fromkeys(TAGGABLE, known_environment),
)
ONE_PLATFORM = Rule(
    name="one-platform-per-stack",
    statement="All resources of a stack name the same platform.",
    reason="A resource with another platform's tag is charged to its budget and deleted with this stack.",
    fix="take the tags from trainfleet.infra.tags, and put another platform in a stack of its own",
    references=("Pulumi: organizing projects and stacks",),
    severity="medium",
    stack=dict.fromkeys(TAGGABLE, one_platform),
)
RULES = (REQUIRED_TAGS, PLATFORM_NAMES, KNOWN_ENVIRONMENT, ONE_PLATFORM)
