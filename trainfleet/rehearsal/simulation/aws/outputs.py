"""The outputs of AWS's resource types whose format a program may depend on."""

from __future__ import annotations

from typing import Any

from trainfleet.rehearsal.simulation.aws.ids import ACCOUNT, short


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
    if kind == "ec2/vpc:Vpc":  # the main route table of a new VPC is its default one
        table = f"rtb-0{random[:16]}"
        return {"mainRouteTableId": table, "defaultRouteTableId": table}
    if kind == "appsync/graphQLApi:GraphQLApi":
        host = f"{random[:26]}.appsync-{{}}.{region}.amazonaws.com/graphql"
        return {
            "uris": {
                "GRAPHQL": f"https://{host.format('api')}",
                "REALTIME": f"wss://{host.format('realtime-api')}",
            }
        }
    if kind == "ec2/launchTemplate:LaunchTemplate":
        return {"latestVersion": 1, "defaultVersion": 1}
    if kind == "cloudwatch/logGroup:LogGroup":
        return {"arn": f"arn:aws:logs:{region}:{ACCOUNT}:log-group:{name}"}
    return {}


def node_group_names(group: str, random: str) -> dict[str, Any]:
    """Return the outputs of a node group that name it and its Auto Scaling group."""
    name = f"eks-{group}-{random[:8]}-{random[8:12]}-{random[12:16]}-{random[16:20]}-{random[20:32]}"
    return {"nodeGroupName": group, "resources": [{"autoscalingGroups": [{"name": name}]}]}
