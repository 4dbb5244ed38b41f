"""The AWS model: prefixed ids, and names that are generated and unique per service."""

# ruff: noqa: ARG002 - all clouds share these signatures; not every cloud uses every argument

from __future__ import annotations

from typing import Any

from trainfleet.rehearsal.simulation.aws.answers import ANSWERS, FINDERS
from trainfleet.rehearsal.simulation.aws.ids import ACCOUNT, NAMES, PREFIXES, REGION, short
from trainfleet.rehearsal.simulation.aws.outputs import node_group_names, own_outputs
from trainfleet.rehearsal.simulation.cloud_model import CloudModel
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.values import Identity, digest

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

    def updated(
        self, token: str, old: dict[str, Any], new: dict[str, Any], outputs: dict[str, Any]
    ) -> dict[str, Any]:
        if short(token) != "ec2/launchTemplate:LaunchTemplate":
            return {}
        # Every change but that of the template's own tags makes a version (terraform-provider-aws
        # internal/service/ec2/ec2_launch_template.go, CustomizeDiff of latest_version).
        quiet = ("tags", "tagsAll", "defaultVersion", "updateDefaultVersion")
        own, other = ({k: v for k, v in each.items() if k not in quiet} for each in (plain(old), plain(new)))
        version = int(plain(outputs).get("latestVersion") or 1) + (own != other)
        return {"latestVersion": version, "defaultVersion": version}
