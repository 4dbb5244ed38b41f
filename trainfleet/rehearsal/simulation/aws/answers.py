"""What AWS answers to functions: zones, policy documents, images and Auto Scaling groups.

A function (`aws.get_…`) that is not in the table fails by name, because an invented answer would prove
nothing. Source: the API references of the AWS services.
"""

from __future__ import annotations

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


FINDERS: dict[str, Finder] = {
    # The SDK has a wrong name for the function that lists Auto Scaling groups.
    "aws:autoscaling/getAmiIds:getAmiIds": _scaling_group_names,
    "aws:autoscaling/getGroup:getGroup": _scaling_group,
}
