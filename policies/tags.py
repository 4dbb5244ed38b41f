"""Tags: whose it is, which platform and environment it belongs to, on everything that can carry them.

Tags are judged as each resource's own input, because a provider's default tags are added where no policy sees them.
"""

from __future__ import annotations

from collections.abc import Iterable

from policies.rule import Resource, Rule, Violation, listed

REQUIRED = ("trainfleet:platform", "trainfleet:environment", "trainfleet:owner")
AWS_TAGGABLE = (
    "aws:cloudwatch/logGroup:LogGroup",
    "aws:ebs/volume:Volume",
    "aws:ec2/eip:Eip",
    "aws:ec2/flowLog:FlowLog",
    "aws:ec2/instance:Instance",
    "aws:ec2/internetGateway:InternetGateway",
    "aws:ec2/launchTemplate:LaunchTemplate",
    "aws:ec2/natGateway:NatGateway",
    "aws:ec2/placementGroup:PlacementGroup",
    "aws:ec2/routeTable:RouteTable",
    "aws:ec2/securityGroup:SecurityGroup",
    "aws:ec2/subnet:Subnet",
    "aws:ec2/vpc:Vpc",
    "aws:ec2/vpcEndpoint:VpcEndpoint",
    "aws:ecr/repository:Repository",
    "aws:efs/fileSystem:FileSystem",
    "aws:eks/accessEntry:AccessEntry",
    "aws:eks/addon:Addon",
    "aws:eks/cluster:Cluster",
    "aws:eks/nodeGroup:NodeGroup",
    "aws:eks/podIdentityAssociation:PodIdentityAssociation",
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
    "aws:fsx/lustreFileSystem:LustreFileSystem",
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider",
    "aws:iam/policy:Policy",
    "aws:iam/role:Role",
    "aws:kms/key:Key",
    "aws:s3/bucket:Bucket",
    "aws:s3/bucketV2:BucketV2",
    "aws:secretsmanager/secret:Secret",
    "aws:sns/topic:Topic",
    "aws:sqs/queue:Queue",
)


def tagged(resource: Resource) -> Iterable[Violation]:
    tags = resource.props.get("tags") or {}
    missing = [tag for tag in (*REQUIRED, *listed(resource.settings.get("required"))) if not tags.get(tag)]
    if missing:
        yield Violation(f"tags lack {', '.join(missing)}")


REQUIRED_TAGS = Rule(
    name="required-tags",
    statement="Everything that can carry tags says which platform and environment it belongs to, and whose it is.",
    fix="take the tags from infra.tags",
    references=("AWS Config required-tags",),
    checks=dict.fromkeys(AWS_TAGGABLE, tagged),
    settings={"required": {"type": "array", "items": {"type": "string"}}},
)
RULES = (REQUIRED_TAGS,)
