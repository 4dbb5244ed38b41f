"""The AWS model: resource ids, generated and unique names, and answers to functions.

A function (`aws.get_…`) that is not in the table fails by name, because an invented answer would prove
nothing. Source: the API references of the AWS services.
"""

# ruff: noqa: ARG002 - all clouds share these signatures; not every cloud uses every argument

from __future__ import annotations

import json
from typing import Any

from trainfleet.rehearsal.simulation.cloud_model import Answer, CloudModel, Finder
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.values import Identity, digest

ACCOUNT = "111122223333"
REGION = "us-east-2"
PARTITION = "aws"

PREFIXES = {
    "ec2/vpc:Vpc": "vpc",
    "ec2/subnet:Subnet": "subnet",
    "ec2/securityGroup:SecurityGroup": "sg",
    "ec2/defaultSecurityGroup:DefaultSecurityGroup": "sg",
    "ec2/internetGateway:InternetGateway": "igw",
    "ec2/natGateway:NatGateway": "nat",
    "ec2/routeTable:RouteTable": "rtb",
    "ec2/defaultRouteTable:DefaultRouteTable": "rtb",
    "ec2/routeTableAssociation:RouteTableAssociation": "rtbassoc",
    "ec2/eip:Eip": "eipalloc",
    "ec2/vpcEndpoint:VpcEndpoint": "vpce",
    "ec2/flowLog:FlowLog": "fl",
    "ec2/launchTemplate:LaunchTemplate": "lt",
    "ec2/defaultNetworkAcl:DefaultNetworkAcl": "acl",
    "ec2/capacityReservation:CapacityReservation": "cr",
    "ec2/volume:Volume": "vol",
    "ec2/instance:Instance": "i",
    "vpc/securityGroupIngressRule:SecurityGroupIngressRule": "sgr",
    "vpc/securityGroupEgressRule:SecurityGroupEgressRule": "sgr",
    "fsx/lustreFileSystem:LustreFileSystem": "fs",
    "fsx/dataRepositoryAssociation:DataRepositoryAssociation": "dra",
    "eks/podIdentityAssociation:PodIdentityAssociation": "a",
}
"""The id prefix of a type. Other types derive their id from their name."""

NAMES = {
    "s3/bucket:Bucket": "bucket",
    "s3/bucketV2:BucketV2": "bucket",
    "eks/nodeGroup:NodeGroup": "nodeGroupName",
}
"""The property that holds the physical name, where it is not `name`.

If the program omits it, it is generated from the logical name.
"""

SCOPES = ("clusterName", "vpcId", "role", "user", "group", "region")
_UNIQUE_SERVICES = {
    "eks",
    "iam",
    "s3",
    "ecr",
    "cloudwatch",
    "secretsmanager",
    "budgets",
    "kms",
    "sqs",
    "sns",
    "dynamodb",
    "lb",
    "lambda",
}
_UNIQUE_TYPES = {
    "ec2/launchTemplate:LaunchTemplate",
    "ec2/securityGroup:SecurityGroup",
    "ec2/placementGroup:PlacementGroup",
}


def short(token: str) -> str:
    """Return a type token without its package."""
    return token.split(":", 1)[1]


def own_outputs(token: str, name: str, resource_id: str, region: str, random: str) -> dict[str, Any]:  # noqa: PLR0911 - one per type
    """Return the outputs whose format a program may depend on."""
    kind = short(token)
    if kind == "iam/role:Role":
        return {"arn": f"arn:aws:iam::{ACCOUNT}:role/{name}", "uniqueId": f"AROA{random[:16].upper()}"}
    if kind == "iam/policy:Policy":
        return {"arn": f"arn:aws:iam::{ACCOUNT}:policy/{name}"}
    if kind in ("s3/bucket:Bucket", "s3/bucketV2:BucketV2"):
        return {
            "arn": f"arn:aws:s3:::{name}",
            "bucketDomainName": f"{name}.s3.amazonaws.com",
            "bucketRegionalDomainName": f"{name}.s3.{region}.amazonaws.com",
        }
    if kind == "eks/cluster:Cluster":
        issuer = f"https://oidc.eks.{region}.amazonaws.com/id/{random[:32].upper()}"
        return {
            "arn": f"arn:aws:eks:{region}:{ACCOUNT}:cluster/{name}",
            "endpoint": f"https://{random[:32].upper()}.gr7.{region}.eks.amazonaws.com",
            "identities": [{"oidcs": [{"issuer": issuer}]}],
            # The timestamp differs between clusters and is stable for each of them.
            "createdAt": (
                f"2026-01-01T{int(random[:2], 16) % 24:02}:{int(random[2:4], 16) % 60:02}"
                f":{int(random[4:6], 16) % 60:02}Z"
            ),
        }
    if kind == "ecr/repository:Repository":
        return {"repositoryUrl": f"{ACCOUNT}.dkr.ecr.{region}.amazonaws.com/{name}", "registryId": ACCOUNT}
    if kind in ("kms/key:Key", "secretsmanager/secret:Secret"):
        return {
            "arn": (
                resource_id
                if resource_id.startswith("arn:")
                else f"arn:aws:kms:{region}:{ACCOUNT}:key/{resource_id}"
            )
        }
    if kind == "ec2/launchTemplate:LaunchTemplate":
        return {"latestVersion": 1, "defaultVersion": 1}
    if kind == "cloudwatch/logGroup:LogGroup":
        return {"arn": f"arn:aws:logs:{region}:{ACCOUNT}:log-group:{name}"}
    return {}


def _zones(region: str) -> list[str]:
    return [f"{region}{letter}" for letter in "abc"]


def _availability_zones(args: dict[str, Any], region: str) -> dict[str, Any]:
    names = _zones(region)
    return {
        "id": region,
        "region": region,
        "names": names,
        "zoneIds": [f"use2-az{index + 1}" for index in range(len(names))],
        "groupNames": [region],
        "state": args.get("state", "available"),
    }


def _policy_document(args: dict[str, Any], _: str) -> dict[str, Any]:
    document = json.dumps(
        {
            "Version": args.get("version", "2012-10-17"),
            "Statement": [_statement(part) for part in args.get("statements", [])],
        }
    )
    return {**args, "id": digest(document)[:10], "json": document, "minifiedJson": document}


def _statement(part: dict[str, Any]) -> dict[str, Any]:
    statement: dict[str, Any] = {"Effect": part.get("effect", "Allow")}
    names = {
        "sid": "Sid",
        "actions": "Action",
        "notActions": "NotAction",
        "resources": "Resource",
        "notResources": "NotResource",
    }
    statement |= {upper: part[lower] for lower, upper in names.items() if part.get(lower)}
    if part.get("principals"):
        statement["Principal"] = {
            principal["type"]: principal["identifiers"] for principal in part["principals"]
        }
    for condition in part.get("conditions", []):
        statement.setdefault("Condition", {}).setdefault(condition["test"], {})[condition["variable"]] = (
            condition["values"]
        )
    return statement


def _vpc_endpoint_service(args: dict[str, Any], region: str) -> dict[str, Any]:
    name = args.get("serviceName") or f"com.amazonaws.{region}.{args.get('service', 's3')}"
    return {
        "id": digest(name)[:8],
        "serviceName": name,
        "availabilityZones": _zones(region),
        "serviceType": args.get("serviceType", "Interface"),
        "region": region,
    }


ANSWERS: dict[str, Answer] = {
    "aws:index/getAvailabilityZones:getAvailabilityZones": _availability_zones,
    "aws:index/getCallerIdentity:getCallerIdentity": lambda *_: {
        "id": ACCOUNT,
        "accountId": ACCOUNT,
        "arn": f"arn:aws:iam::{ACCOUNT}:user/rehearsal",
        "userId": "AIDAREHEARSAL",
    },
    "aws:index/getPartition:getPartition": lambda *_: {
        "id": PARTITION,
        "partition": PARTITION,
        "dnsSuffix": "amazonaws.com",
        "reverseDnsPrefix": "com.amazonaws",
    },
    "aws:index/getRegion:getRegion": lambda args, region: {
        "id": args.get("region") or region,
        "name": args.get("region") or region,
        "region": args.get("region") or region,
        "description": f"Region {region}",
        "endpoint": f"ec2.{region}.amazonaws.com",
    },
    "aws:iam/getPolicyDocument:getPolicyDocument": _policy_document,
    "aws:ec2/getVpcEndpointService:getVpcEndpointService": _vpc_endpoint_service,
    "aws:eks/getAddonVersion:getAddonVersion": lambda args, region: {
        "id": args["addonName"],
        "addonName": args["addonName"],
        "kubernetesVersion": args["kubernetesVersion"],
        "version": "v1.0.0-eksbuild.1",
        "region": region,
    },
    "aws:eks/getClusterAuth:getClusterAuth": lambda args, region: {
        "id": args["name"],
        "name": args["name"],
        "token": "rehearsal",
        "region": region,
    },
    "aws:ssm/getParameter:getParameter": lambda args, region: {
        "id": args["name"],
        "name": args["name"],
        "arn": f"arn:aws:ssm:{region}::parameter{args['name']}",
        "type": "String",
        "value": f"ami-0{digest(args['name'])[:16]}",
        "insecureValue": f"ami-0{digest(args['name'])[:16]}",
        "version": 1,
        "region": region,
    },
    "aws:ec2/getAmi:getAmi": lambda args, region: {
        **args,
        "id": f"ami-0{digest(json.dumps(args, sort_keys=True))[:16]}",
        "imageId": f"ami-0{digest(json.dumps(args, sort_keys=True))[:16]}",
        "name": "rehearsal",
        "architecture": "x86_64",
        "rootDeviceName": "/dev/xvda",
        "region": region,
    },
    "aws:ec2/getPrefixList:getPrefixList": lambda args, region: {
        "id": f"pl-0{digest(region)[:16]}",
        "name": args.get("name", ""),
        "cidrBlocks": ["198.51.100.0/24"],
        "region": region,
    },
}


def node_group_names(group: str, random: str) -> dict[str, Any]:
    """Return the outputs of a node group that name it and its Auto Scaling group."""
    name = f"eks-{group}-{random[:8]}-{random[8:12]}-{random[12:16]}-{random[16:20]}-{random[20:32]}"
    return {"nodeGroupName": group, "resources": [{"autoscalingGroups": [{"name": name}]}]}


def scaling_groups(records: list[CloudObject]) -> dict[str, CloudObject]:
    """Return the node groups that exist, by the name of their Auto Scaling group."""
    groups = (record for record in records if short(record.token) == "eks/nodeGroup:NodeGroup")
    return {plain(group.outputs)["resources"][0]["autoscalingGroups"][0]["name"]: group for group in groups}


def _scaling_group_names(args: dict[str, Any], region: str, records: list[CloudObject]) -> dict[str, Any]:
    filters = [(each["name"], each["values"]) for each in args.get("filters") or []]
    if unknown := [name for name, _ in filters if name != "tag:eks:cluster-name"]:
        raise LookupError(
            f"the rehearsal cannot look for Auto Scaling groups by {unknown[0]}: only by tag:eks:cluster-name"
        )
    names = sorted(
        name
        for name, group in scaling_groups(records).items()
        if all(plain(group.inputs)["clusterName"] in values for _, values in filters)
    )
    return {**args, "id": region, "region": region, "names": names, "arns": []}


def _scaling_group(args: dict[str, Any], region: str, records: list[CloudObject]) -> dict[str, Any]:
    group = scaling_groups(records).get(args["name"])
    if group is None:
        raise LookupError(f"no Auto Scaling group is called {args['name']}")
    size = plain(group.inputs)["scalingConfig"]
    limits = {"minSize": size["minSize"], "maxSize": size["maxSize"], "desiredCapacity": size["desiredSize"]}
    return {"id": args["name"], "name": args["name"], "region": region, **limits}


FINDERS: dict[str, Finder] = {
    # The SDK has a wrong name for the function that lists Auto Scaling groups.
    "aws:autoscaling/getAmiIds:getAmiIds": _scaling_group_names,
    "aws:autoscaling/getGroup:getGroup": _scaling_group,
}


class AwsModel(CloudModel):
    """AWS: prefixed ids, names that are unique per service, and a `region` on every resource."""

    region = REGION
    account = ACCOUNT
    answers = ANSWERS
    finders = FINDERS

    def name_property(self, token: str) -> str:
        return NAMES.get(short(token), "name")

    def make_name(self, token: str, logical: str, random: str) -> str:
        name = f"{logical}-{random[:7]}"
        if short(token) == "kms/alias:Alias":
            return f"alias/{name}"
        return (
            name.lower()
            if short(token).startswith(("s3/bucket:", "s3/bucketV2:", "ecr/repository:"))
            else name
        )

    def unique_key(self, token: str, inputs: dict[str, Any], scope: str) -> str:
        name = self.physical_name(token, inputs)
        if not name or (
            short(token).split("/")[0] not in _UNIQUE_SERVICES and short(token) not in _UNIQUE_TYPES
        ):
            return ""
        known = plain(inputs)
        return "|".join(
            [
                token,
                " in ".join([name, *(str(known[key]) for key in SCOPES if isinstance(known.get(key), str))]),
            ]
        )

    def make_id(self, token: str, inputs: dict[str, Any], name: str, random: str) -> str:
        if prefix := PREFIXES.get(short(token)):
            return f"{prefix}-0{random[:16]}"
        cluster = inputs.get("clusterName")
        if short(token).startswith("eks/") and isinstance(cluster, str):
            own = next(
                (
                    inputs[key]
                    for key in ("nodeGroupName", "addonName", "principalArn")
                    if isinstance(inputs.get(key), str)
                ),
                name,
            )
            return f"{cluster}:{own}"
        if short(token) == "secretsmanager/secret:Secret":
            return (
                f"arn:aws:secretsmanager:{inputs.get('region') or REGION}:{ACCOUNT}"
                f":secret:{name}-{random[:6]}"
            )
        return name if isinstance(inputs.get(self.name_property(token)), str) else f"{name}-{random[:8]}"

    def identity(
        self, token: str, inputs: dict[str, Any], name: str, resource_id: str, region: str
    ) -> Identity:
        random = digest(token, resource_id)
        if short(token) == "eks/nodeGroup:NodeGroup":
            # EKS completes a name prefix with a timestamp and a counter, 26 digits in total.
            own = node_group_names(
                inputs.get("nodeGroupName") or f"{inputs.get('nodeGroupNamePrefix', '')}{random[:26]}", random
            )
            return Identity(token, name, resource_id, region, ACCOUNT, own)
        return Identity(
            token, name, resource_id, region, ACCOUNT, own_outputs(token, name, resource_id, region, random)
        )

    def always_replaces(self, token: str, path: tuple[str, ...]) -> bool:
        return path == ("region",)
