"""What AWS answers to functions: zones, policy documents, images, Auto Scaling groups, the default VPC.

A function (`aws.get_…`) that is not in the table fails by name, because an invented answer would prove
nothing. Source: the API references of the AWS services.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from trainfleet.rehearsal.simulation.aws.ids import ACCOUNT, PARTITION, short
from trainfleet.rehearsal.simulation.cloud_model import Answer, Finder
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.values import digest


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
            "Version": args.get("version") or "2012-10-17",
            "Statement": [_statement(part or {}) for part in args.get("statements") or []],
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
    for condition in part.get("conditions") or []:
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


def _registry_token(args: dict[str, Any], region: str) -> dict[str, Any]:
    """ECR API reference, GetAuthorizationToken: base64 of `AWS:PASSWORD`."""
    registry = args.get("registryId") or ACCOUNT
    password = digest(f"token of {registry}")
    return {
        "id": region,
        "region": region,
        "authorizationToken": base64.b64encode(f"AWS:{password}".encode()).decode(),
        "expiresAt": "2026-01-01T12:00:00Z",
        "password": password,
        "proxyEndpoint": f"https://{registry}.dkr.ecr.{region}.amazonaws.com",
        "userName": "AWS",
    }


ANSWERS: dict[str, Answer] = {
    "aws:ecr/getAuthorizationToken:getAuthorizationToken": _registry_token,
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
        "value": f"ami-0{digest(str(args['name']))[:16]}",
        "insecureValue": f"ami-0{digest(str(args['name']))[:16]}",
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


# The default VPC, which every account has in each region (Amazon VPC user guide, default VPCs): 172.31.0.0/16
# with a subnet of /20 in each zone.


def _default_vpc(region: str) -> str:
    return f"vpc-0{digest('default VPC', region)[:16]}"


def _filters(args: dict[str, Any]) -> dict[str, list[str]]:
    given = [each for each in args.get("filters") or [] if each is not None]
    return {str(each["name"]): [str(value) for value in each["values"]] for each in given}


def _vpc(args: dict[str, Any], region: str, _: list[CloudObject]) -> dict[str, Any] | None:
    own = _default_vpc(region)
    filters = _filters(args)
    asks = args.get("default") is True or filters.get("is-default") == ["true"]
    if args.get("id") != own and (not asks or args.get("id") or len(filters) > 1):
        return None
    return {
        **args,
        "id": own,
        "arn": f"arn:aws:ec2:{region}:{ACCOUNT}:vpc/{own}",
        "cidrBlock": "172.31.0.0/16",
        "cidrBlockAssociations": [],
        "default": True,
        "dhcpOptionsId": f"dopt-0{digest(own, 'dhcp')[:16]}",
        "enableDnsHostnames": True,
        "enableDnsSupport": True,
        "instanceTenancy": "default",
        "mainRouteTableId": f"rtb-0{digest(own, 'main')[:16]}",
        "ownerId": ACCOUNT,
        "region": region,
        "state": "available",
        "tags": {},
    }


def _default_subnets(region: str) -> dict[str, tuple[str, str]]:
    """Return the zone and the range of each default subnet by its id."""
    return {
        f"subnet-0{digest('default subnet', zone)[:16]}": (zone, f"172.31.{16 * index}.0/20")
        for index, zone in enumerate(_zones(region))
    }


def _subnets(args: dict[str, Any], region: str, records: list[CloudObject]) -> dict[str, Any] | None:
    """Return the subnets of a VPC: of the default one, or those that exist. Another filter has no answer."""
    filters = _filters(args)
    if args.get("tags") or list(filters) != ["vpc-id"]:
        return None
    ids = list(_default_subnets(region)) if filters["vpc-id"] == [_default_vpc(region)] else []
    ids += [
        record.id
        for record in records
        if short(record.token) == "ec2/subnet:Subnet" and plain(record.inputs)["vpcId"] in filters["vpc-id"]
    ]
    return {**args, "id": region, "region": region, "ids": sorted(ids)} if ids else None


def _subnet(args: dict[str, Any], region: str, _: list[CloudObject]) -> dict[str, Any] | None:
    found = _default_subnets(region).get(str(args.get("id")))
    if found is None:
        return None
    zone, cidr = found
    own = str(args["id"])
    return {
        **args,
        "arn": f"arn:aws:ec2:{region}:{ACCOUNT}:subnet/{own}",
        "availabilityZone": zone,
        "availableIpAddressCount": 4091,
        "cidrBlock": cidr,
        "defaultForAz": True,
        "mapPublicIpOnLaunch": True,
        "ownerId": ACCOUNT,
        "region": region,
        "state": "available",
        "tags": {},
        "vpcId": _default_vpc(region),
    }


FINDERS: dict[str, Finder] = {
    "aws:ec2/getVpc:getVpc": _vpc,
    "aws:ec2/getSubnets:getSubnets": _subnets,
    "aws:ec2/getSubnet:getSubnet": _subnet,
    # The SDK has a wrong name for the function that lists Auto Scaling groups.
    "aws:autoscaling/getAmiIds:getAmiIds": _scaling_group_names,
    "aws:autoscaling/getGroup:getGroup": _scaling_group,
}
