"""What Azure answers to functions: client settings, kubeconfigs, keys and resource groups."""

from __future__ import annotations

import base64
import json
from typing import Any

from trainfleet.rehearsal.simulation.azure.ids import GROUP, TENANT
from trainfleet.rehearsal.simulation.cloud_model import Answer
from trainfleet.rehearsal.simulation.kubeconfig import kubeconfig
from trainfleet.rehearsal.simulation.paths import filled, guid
from trainfleet.rehearsal.simulation.values import digest


def _kubeconfigs(args: dict[str, Any], location: str) -> dict[str, Any]:
    cluster = str(args.get("resourceName"))
    server = f"https://{cluster}-{digest(cluster)[:8]}.hcp.{location}.azmk8s.io:443"
    certificate = base64.b64encode(f"certificate of {cluster}".encode()).decode()
    user = f"clusterUser_{args.get('resourceGroupName')}_{cluster}"
    document = kubeconfig(cluster, user, server, certificate)
    return {
        "kubeconfigs": [
            {"name": "clusterUser", "value": base64.b64encode(json.dumps(document).encode()).decode()}
        ]
    }


def _group(args: dict[str, Any], location: str) -> dict[str, Any]:
    return {
        "id": filled(GROUP, args, ""),
        "name": args["resourceGroupName"],
        "location": location,
        "type": "Microsoft.Resources/resourceGroups",
        "azureApiVersion": "2024-03-01",
        "properties": {"provisioningState": "Succeeded"},
    }


def _identity(args: dict[str, Any], location: str) -> dict[str, Any]:
    name = str(args["resourceName"])
    return {
        "id": filled(f"{GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{name}", args, ""),
        "name": name,
        "location": location,
        "type": "Microsoft.ManagedIdentity/userAssignedIdentities",
        "azureApiVersion": "2024-11-30",
        "tenantId": TENANT,
        "clientId": guid(f"client of {name}"),
        "principalId": guid(f"principal of {name}"),
    }


def _account_keys(args: dict[str, Any], _: str) -> dict[str, Any]:
    value = base64.b64encode(digest(str(args.get("accountName"))).encode()).decode()
    return {
        "keys": [
            {"keyName": name, "value": value, "permissions": "Full", "creationTime": "2026-01-01T00:00:00Z"}
            for name in ("key1", "key2")
        ]
    }


def _registry_credentials(args: dict[str, Any], _: str) -> dict[str, Any]:
    """Container Registry API reference, List Credentials: the admin user has the registry's name."""
    name = str(args.get("registryName"))
    passwords = [{"name": key, "value": digest(name, key)[:52]} for key in ("password", "password2")]
    return {"username": name, "passwords": passwords}


def _workspace_keys(args: dict[str, Any], _: str) -> dict[str, Any]:
    return {
        "primarySharedKey": digest(str(args.get("workspaceName")), "1"),
        "secondarySharedKey": digest(str(args.get("workspaceName")), "2"),
    }


ANSWERS: dict[str, Answer] = {
    "azure-native:authorization:getClientConfig": lambda args, _: {
        "clientId": guid("client"),
        "objectId": guid("object"),
        "subscriptionId": args["subscriptionId"],
        "tenantId": TENANT,
    },
    "azure-native:authorization:getClientToken": lambda *_: {"token": "rehearsal"},
    "azure-native:containerregistry:listRegistryCredentials": _registry_credentials,
    "azure-native:containerservice:listManagedClusterAdminCredentials": _kubeconfigs,
    "azure-native:containerservice:listManagedClusterUserCredentials": _kubeconfigs,
    "azure-native:managedidentity:getUserAssignedIdentity": _identity,
    "azure-native:operationalinsights:getSharedKeys": _workspace_keys,
    "azure-native:operationalinsights:getWorkspaceSharedKeys": _workspace_keys,
    "azure-native:resources:getResourceGroup": _group,
    "azure-native:storage:listStorageAccountKeys": _account_keys,
}
