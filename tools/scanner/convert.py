"""Convert the resources of a Pulumi state to files that Checkov reads.

Pulumi's AWS and Google providers are bridged from Terraform, so their resources become Terraform code.
Azure's become an ARM template, and the cluster's objects become manifests. Helm releases are left out:
without their charts there is nothing to scan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECRET = "4dabf18193072939515e22adb298388d"
"""The key with which the engine marks a secret."""
MAPS = {"tags", "labels", "metadata", "resourceLabels", "matchLabels", "annotations", "nodeSelector"}
"""Properties whose keys are the user's, so they become maps instead of blocks."""
SINGULAR = {
    "allows": "allow",
    "auditConfigs": "audit_config",
    "cidrBlocks": "cidr_blocks",
    "denies": "deny",
    "encryptionConfigurations": "encryption_configuration",
    "guestAccelerators": "guest_accelerator",
    "lifecycleRules": "lifecycle_rule",
    "notifications": "notification",
    "rules": "rule",
    "secondaryIpRanges": "secondary_ip_range",
    "taints": "taint",
}
"""Lists that Pulumi names in the plural and Terraform in the singular."""
MODULES = {
    "aws": {"ec2": ""},
    "gcp": {
        "artifactregistry": "artifact_registry",
        "projects": "project",
        "secretmanager": "secret_manager",
        "serviceaccount": "service_account",
        "servicenetworking": "service_networking",
    },
}
NAMES = {
    "aws:autoscaling/tag:Tag": "aws_autoscaling_group_tag",
    "gcp:serviceaccount/account:Account": "google_service_account",
}
"""Types whose name in Terraform does not follow from their token."""
ARM_TYPES = {
    "authorization:RoleAssignment": "Microsoft.Authorization/roleAssignments",
    "compute:DiskEncryptionSet": "Microsoft.Compute/diskEncryptionSets",
    "containerregistry:Registry": "Microsoft.ContainerRegistry/registries",
    "containerservice:AgentPool": "Microsoft.ContainerService/managedClusters/agentPools",
    "containerservice:ManagedCluster": "Microsoft.ContainerService/managedClusters",
    "keyvault:Key": "Microsoft.KeyVault/vaults/keys",
    "keyvault:Vault": "Microsoft.KeyVault/vaults",
    "network:NatGateway": "Microsoft.Network/natGateways",
    "network:NetworkSecurityGroup": "Microsoft.Network/networkSecurityGroups",
    "network:PrivateEndpoint": "Microsoft.Network/privateEndpoints",
    "network:PublicIPAddress": "Microsoft.Network/publicIPAddresses",
    "network:Subnet": "Microsoft.Network/virtualNetworks/subnets",
    "network:VirtualNetwork": "Microsoft.Network/virtualNetworks",
    "operationalinsights:Workspace": "Microsoft.OperationalInsights/workspaces",
    "storage:BlobContainer": "Microsoft.Storage/storageAccounts/blobServices/containers",
    "storage:BlobServiceProperties": "Microsoft.Storage/storageAccounts/blobServices",
    "storage:StorageAccount": "Microsoft.Storage/storageAccounts",
}
ARM_NAMES = {"networkRuleSet": "networkAcls", "enableHttpsTrafficOnly": "supportsHttpsTrafficOnly"}
"""Properties of a storage account that Pulumi renames."""
ARM_TOP = {"identity", "kind", "location", "sku", "tags", "zones"}
"""What an ARM resource has next to its `properties`."""


@dataclass(frozen=True)
class Planned:
    """One resource of a state."""

    type: str
    name: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any] = field(default_factory=dict)
    depends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    urn: str = ""


def read_state(path: Path) -> list[Planned]:
    """Read the resources of a state file or of an exported stack, with secrets masked."""
    document = json.loads(path.read_text(encoding="utf-8"))
    deployment = document.get("deployment") or document["checkpoint"]["latest"]
    return [
        Planned(
            each["type"],
            each["urn"].rpartition("::")[2],
            _plain(each.get("inputs") or {}),
            _plain({**(each.get("outputs") or {}), "id": each.get("id")}),
            {key: tuple(urns or ()) for key, urns in (each.get("propertyDependencies") or {}).items()},
            each["urn"],
        )
        for each in deployment["resources"]
        if each.get("custom")
    ]


def write_files(resources: Sequence[Planned], folder: Path) -> None:
    """Write main.tf, azure.json and kubernetes.json, each only if it has resources."""
    terraform = [each for each in resources if each.type.startswith(("aws:", "gcp:"))]
    if terraform:
        by_urn = {each.urn: each for each in terraform}
        (folder / "main.tf").write_text("\n".join(_hcl(each, by_urn) for each in terraform), encoding="utf-8")
    arm = [_arm(each) for each in resources if _arm_type(each)]
    if arm:
        schema = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"
        template = {"$schema": schema, "contentVersion": "1.0.0.0", "resources": arm}
        (folder / "azure.json").write_text(json.dumps(template, indent=1), encoding="utf-8")
    objects = [each.inputs for each in resources if _is_object(each)]
    if objects:
        items = [{key: value for key, value in each.items() if value is not None} for each in objects]
        document = {"apiVersion": "v1", "kind": "List", "items": items}
        (folder / "kubernetes.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def terraform_type(token: str) -> str:
    """Return the Terraform type of a token of the AWS or Google provider."""
    if token in NAMES:
        return NAMES[token]
    package, module, name = token.partition(":")[0], *_module_and_name(token)
    module = MODULES[package].get(module, module)
    prefix = {"aws": "aws", "gcp": "google"}[package]
    return "_".join(part for part in (prefix, module, snake(name)) if part)


def snake(name: str) -> str:
    """`publicAccessBlock` to `public_access_block`, `iAMMember` and `bucketIAMMember` to `..iam_member`."""
    name = re.sub(r"^iAM", "IAM", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _module_and_name(token: str) -> tuple[str, str]:
    middle = token.split(":")[1]
    module, _, name = middle.partition("/")
    return module, name


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if SECRET in value:
            return "secret"
        return {key: _plain(each) for key, each in value.items() if not key.startswith("__")}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _hcl(resource: Planned, by_urn: Mapping[str, Planned]) -> str:
    lines = [f'resource "{terraform_type(resource.type)}" "{_label(resource.name)}" {{']
    for key, value in resource.inputs.items():
        known = _references(resource.depends.get(key, ()), by_urn)
        lines += _entry(key, value, known, "  ")
    return "\n".join([*lines, "}", ""])


def _label(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _references(urns: Iterable[str], by_urn: Mapping[str, Planned]) -> dict[str, str]:
    """Values of other resources to the expressions that refer to them."""
    found: dict[str, str] = {}
    for urn in urns:
        if (other := by_urn.get(urn)) is None:
            continue
        address = f"{terraform_type(other.type)}.{_label(other.name)}"
        for key in ("name", "bucket", "arn", "id"):
            if isinstance(value := other.outputs.get(key), str):
                found[value] = f"{address}.{key}"
    return found


def _entry(key: str, value: Any, known: Mapping[str, str], indent: str) -> list[str]:
    if value is None:
        return []
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(each, dict) for each in items) and key not in MAPS:
        name = SINGULAR.get(key, snake(key))
        lines = []
        for each in items:
            lines.append(f"{indent}{name} {{")
            for inner, item in each.items():
                lines += _entry(inner, item, known, indent + "  ")
            lines.append(f"{indent}}}")
        return lines
    return [f"{indent}{snake(key)} = {_expression(value, known)}"]


def _expression(value: Any, known: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return known.get(value) or json.dumps(value).replace("${", "$${")
    if isinstance(value, list):
        return f"[{', '.join(_expression(each, known) for each in value)}]"
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_expression(each, known)}" for key, each in value.items())
        return "{ " + ", ".join(pairs) + " }"
    return json.dumps(value)


def _arm_type(resource: Planned) -> str | None:
    package, _, rest = resource.type.partition(":")
    return ARM_TYPES.get(re.sub(r"/v\w+", "", rest)) if package == "azure-native" else None


def _arm(resource: Planned) -> dict[str, Any]:
    inputs = dict(resource.inputs)
    own = inputs.pop("properties", None)
    top = {key: inputs.pop(key) for key in ARM_TOP & inputs.keys()}
    return {
        "type": _arm_type(resource),
        "apiVersion": "2024-01-01",
        "name": inputs.get("accountName", resource.name),
        **top,
        "properties": own or {ARM_NAMES.get(key, key): value for key, value in inputs.items()},
    }


def _is_object(resource: Planned) -> bool:
    return (
        resource.type.startswith("kubernetes:")
        and "apiVersion" in resource.inputs
        and not resource.type.startswith("kubernetes:helm.sh")
    )
