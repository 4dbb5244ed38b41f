"""The Azure model: resource ids, names that azure-native generates, and answers to functions.

An id is `/subscriptions/S/resourceGroups/G/providers/Microsoft.X/types/name`, built from the table below.
"""

# ruff: noqa: ARG002 - all clouds share these signatures; not every cloud uses every argument

from __future__ import annotations

import base64
import json
import re
from typing import Any

from trainfleet.rehearsal.simulation.cloud_model import Answer, CloudModel
from trainfleet.rehearsal.simulation.paths import fields, filled, guid, plural
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.schema import ResourceType, packages
from trainfleet.rehearsal.simulation.values import Identity, address, digest

SUBSCRIPTION = "00000000-1111-2222-3333-444444444444"
TENANT = "11111111-2222-3333-4444-555555555555"
LOCATION = "eastus"

_GROUP = "/subscriptions/{subscriptionId}/resourceGroups/{resourceGroupName}"
IDS = {
    "alertsmanagement:PrometheusRuleGroup": "Microsoft.AlertsManagement/prometheusRuleGroups/{ruleGroupName}",
    "authorization:RoleAssignment": (
        "{scope}/providers/Microsoft.Authorization/roleAssignments/{roleAssignmentName}"
    ),
    "authorization:RoleDefinition": (
        "{scope}/providers/Microsoft.Authorization/roleDefinitions/{roleDefinitionId}"
    ),
    "compute:CapacityReservation": (
        "Microsoft.Compute/capacityReservationGroups/{capacityReservationGroupName}/capacityReservations/{capacityReservationName}"
    ),
    "compute:CapacityReservationGroup": (
        "Microsoft.Compute/capacityReservationGroups/{capacityReservationGroupName}"
    ),
    "compute:DiskEncryptionSet": "Microsoft.Compute/diskEncryptionSets/{diskEncryptionSetName}",
    "compute:ProximityPlacementGroup": (
        "Microsoft.Compute/proximityPlacementGroups/{proximityPlacementGroupName}"
    ),
    "consumption:Budget": "{scope}/providers/Microsoft.Consumption/budgets/{budgetName}",
    "containerregistry:CacheRule": (
        "Microsoft.ContainerRegistry/registries/{registryName}/cacheRules/{cacheRuleName}"
    ),
    "containerregistry:Registry": "Microsoft.ContainerRegistry/registries/{registryName}",
    "containerservice:AgentPool": (
        "Microsoft.ContainerService/managedClusters/{resourceName}/agentPools/{agentPoolName}"
    ),
    "containerservice:MaintenanceConfiguration": (
        "Microsoft.ContainerService/managedClusters/{resourceName}/maintenanceConfigurations/{configName}"
    ),
    "containerservice:ManagedCluster": "Microsoft.ContainerService/managedClusters/{resourceName}",
    "costmanagement:Budget": "{scope}/providers/Microsoft.CostManagement/budgets/{budgetName}",
    "dashboard:Grafana": "Microsoft.Dashboard/grafana/{workspaceName}",
    "keyvault:Key": "Microsoft.KeyVault/vaults/{vaultName}/keys/{keyName}",
    "keyvault:Secret": "Microsoft.KeyVault/vaults/{vaultName}/secrets/{secretName}",
    "keyvault:Vault": "Microsoft.KeyVault/vaults/{vaultName}",
    "managedidentity:FederatedIdentityCredential": (
        "Microsoft.ManagedIdentity/userAssignedIdentities/{resourceName}/federatedIdentityCredentials/{federatedIdentityCredentialResourceName}"
    ),
    "managedidentity:UserAssignedIdentity": "Microsoft.ManagedIdentity/userAssignedIdentities/{resourceName}",
    "monitor:ActionGroup": "Microsoft.Insights/actionGroups/{actionGroupName}",
    "monitor:AzureMonitorWorkspace": "Microsoft.Monitor/accounts/{azureMonitorWorkspaceName}",
    "monitor:DataCollectionEndpoint": (
        "Microsoft.Insights/dataCollectionEndpoints/{dataCollectionEndpointName}"
    ),
    "monitor:DataCollectionRule": "Microsoft.Insights/dataCollectionRules/{dataCollectionRuleName}",
    "monitor:DataCollectionRuleAssociation": (
        "{resourceUri}/providers/Microsoft.Insights/dataCollectionRuleAssociations/{associationName}"
    ),
    "monitor:DiagnosticSetting": "{resourceUri}/providers/Microsoft.Insights/diagnosticSettings/{name}",
    "monitor:MetricAlert": "Microsoft.Insights/metricAlerts/{ruleName}",
    "monitor:ScheduledQueryRule": "Microsoft.Insights/scheduledQueryRules/{ruleName}",
    "netapp:Account": "Microsoft.NetApp/netAppAccounts/{accountName}",
    "netapp:CapacityPool": "Microsoft.NetApp/netAppAccounts/{accountName}/capacityPools/{poolName}",
    "netapp:CapacityPoolVolume": (
        "Microsoft.NetApp/netAppAccounts/{accountName}/capacityPools/{poolName}/volumes/{volumeName}"
    ),
    "network:FlowLog": "Microsoft.Network/networkWatchers/{networkWatcherName}/flowLogs/{flowLogName}",
    "network:NatGateway": "Microsoft.Network/natGateways/{natGatewayName}",
    "network:NetworkSecurityGroup": "Microsoft.Network/networkSecurityGroups/{networkSecurityGroupName}",
    "network:NetworkWatcher": "Microsoft.Network/networkWatchers/{networkWatcherName}",
    "network:PrivateDnsZoneGroup": (
        "Microsoft.Network/privateEndpoints/{privateEndpointName}/privateDnsZoneGroups/{privateDnsZoneGroupName}"
    ),
    "network:PrivateEndpoint": "Microsoft.Network/privateEndpoints/{privateEndpointName}",
    "network:PublicIPAddress": "Microsoft.Network/publicIPAddresses/{publicIpAddressName}",
    "network:PublicIPPrefix": "Microsoft.Network/publicIPPrefixes/{publicIpPrefixName}",
    "network:RouteTable": "Microsoft.Network/routeTables/{routeTableName}",
    "network:SecurityRule": (
        "Microsoft.Network/networkSecurityGroups/{networkSecurityGroupName}/securityRules/{securityRuleName}"
    ),
    "network:Subnet": "Microsoft.Network/virtualNetworks/{virtualNetworkName}/subnets/{subnetName}",
    "network:VirtualNetwork": "Microsoft.Network/virtualNetworks/{virtualNetworkName}",
    "operationalinsights:Table": (
        "Microsoft.OperationalInsights/workspaces/{workspaceName}/tables/{tableName}"
    ),
    "operationalinsights:Workspace": "Microsoft.OperationalInsights/workspaces/{workspaceName}",
    "privatedns:PrivateRecordSet": (
        "Microsoft.Network/privateDnsZones/{privateZoneName}/{recordType}/{relativeRecordSetName}"
    ),
    "privatedns:PrivateZone": "Microsoft.Network/privateDnsZones/{privateZoneName}",
    "privatedns:VirtualNetworkLink": (
        "Microsoft.Network/privateDnsZones/{privateZoneName}/virtualNetworkLinks/{virtualNetworkLinkName}"
    ),
    "resources:ResourceGroup": _GROUP,
    "storage:BlobContainer": (
        "Microsoft.Storage/storageAccounts/{accountName}/blobServices/default/containers/{containerName}"
    ),
    "storage:BlobServiceProperties": (
        "Microsoft.Storage/storageAccounts/{accountName}/blobServices/{blobServicesName}"
    ),
    "storage:EncryptionScope": (
        "Microsoft.Storage/storageAccounts/{accountName}/encryptionScopes/{encryptionScopeName}"
    ),
    "storage:FileServiceProperties": (
        "Microsoft.Storage/storageAccounts/{accountName}/fileServices/{fileServicesName}"
    ),
    "storage:FileShare": (
        "Microsoft.Storage/storageAccounts/{accountName}/fileServices/default/shares/{shareName}"
    ),
    "storage:ManagementPolicy": (
        "Microsoft.Storage/storageAccounts/{accountName}/managementPolicies/{managementPolicyName}"
    ),
    "storage:StorageAccount": "Microsoft.Storage/storageAccounts/{accountName}",
    "storagecache:AmlFilesystem": "Microsoft.StorageCache/amlFilesystems/{amlFilesystemName}",
    "storagecache:AutoImportJob": (
        "Microsoft.StorageCache/amlFilesystems/{amlFilesystemName}/autoImportJobs/{autoImportJobName}"
    ),
}
"""The last part of a type's id, which ends in the physical name.

Without a leading slash or scope, the id belongs to a resource group.
"""

_WORLDWIDE = ("storage:StorageAccount", "keyvault:Vault", "containerregistry:Registry")
_UUIDS = ("authorization:RoleAssignment", "authorization:RoleDefinition")


def short(token: str) -> str:
    """Return a type token without its package."""
    return token.split(":", 1)[1]


def template(token: str) -> str:
    """Return the id of a type with its inputs in braces. Types outside the table are derived from the SDK."""
    kind = short(token)
    tail = IDS.get(kind) or _derived(token)
    return tail if tail.startswith(("/", "{")) else f"{_GROUP}/providers/{tail}"


def _derived(token: str) -> str:
    module, kind = short(token).rsplit(":", 1)
    resource = packages()["azure-native"].resource(token)
    inputs = resource.inputs if resource else {}
    parents = [
        name
        for name, declared in inputs.items()
        if declared.required and name.endswith("Name") and name != "resourceGroupName"
    ]
    own = f"{kind[:1].lower()}{kind[1:]}Name"
    names = [
        name
        for name, declared in inputs.items()
        if not declared.required and declared.kind.name == "string" and re.search(r"(?i)name$", name)
    ]
    name = own if own in names else next((each for each in names if each != "displayName"), own)
    above = "".join(f"{plural(parent.removesuffix('Name'))}/{{{parent}}}/" for parent in parents)
    return f"Microsoft.{module[:1].upper()}{module[1:]}/{above}{plural(kind)}/{{{name}}}"


def resource_type(resource_id: str) -> str:
    """Return `Microsoft.X/a/b` for `…/providers/Microsoft.X/a/one/b/two`."""
    _, found, tail = resource_id.rpartition("/providers/")
    steps = tail.split("/")
    return "/".join([steps[0], *steps[1::2]]) if found else "Microsoft.Resources/resourceGroups"


def own_outputs(  # noqa: PLR0911 - one per type
    kind: str, inputs: dict[str, Any], name: str, resource_id: str, location: str
) -> dict[str, Any]:
    """Return the outputs of a type whose format a program may depend on."""
    if kind == "managedidentity:UserAssignedIdentity":
        return _principal(resource_id) | {"clientId": guid(resource_id, "client")}
    if kind == "containerservice:ManagedCluster":
        return _cluster(inputs, name, resource_id, location)
    if kind == "storage:StorageAccount":
        ends = {
            service: f"https://{name}.{service}.core.windows.net/"
            for service in ("blob", "dfs", "file", "queue", "table")
        }
        return {
            "primaryEndpoints": {**ends, "web": f"https://{name}.z13.web.core.windows.net/"},
            "primaryLocation": location,
        }
    if kind == "keyvault:Vault":
        return {"properties": {"vaultUri": f"https://{name}.vault.azure.net/", "tenantId": TENANT}}
    if kind in ("keyvault:Key", "keyvault:Secret"):
        uri = (
            f"https://{inputs.get('vaultName')}.vault.azure.net"
            f"/{'keys' if kind.endswith('Key') else 'secrets'}/{name}"
        )
        version = f"{uri}/{digest(resource_id)[:32]}"
        if kind == "keyvault:Secret":
            return {"properties": {"secretUri": uri, "secretUriWithVersion": version}}
        return {"keyUri": uri, "keyUriWithVersion": version}
    if kind == "containerregistry:Registry":
        return {"loginServer": f"{name.lower()}.azurecr.io"}
    return _network_and_monitoring(kind, name, resource_id, location)


def _network_and_monitoring(kind: str, name: str, resource_id: str, location: str) -> dict[str, Any]:
    here = address(resource_id, "address")
    group = resource_id.split("/providers/", maxsplit=1)[0]
    managed = f"{group}/providers/Microsoft.Insights"
    known: dict[str, dict[str, Any]] = {
        "operationalinsights:Workspace": {"customerId": guid(resource_id)},
        "network:VirtualNetwork": {"resourceGuid": guid(resource_id)},
        "network:PublicIPAddress": {"ipAddress": here},
        "network:PrivateEndpoint": {
            "networkInterfaces": [{"id": f"{group}/providers/Microsoft.Network/networkInterfaces/{name}.nic"}]
        },
        "storagecache:AmlFilesystem": {
            "clientInfo": {
                "mgsAddress": here,
                "mountCommand": f"mount -t lustre -o noatime,flock {here}@tcp:/lustrefs /lustre",
                "lustreVersion": "2.15",
            }
        },
        "netapp:CapacityPoolVolume": {"mountTargets": [{"ipAddress": here}]},
        "monitor:AzureMonitorWorkspace": {
            "metrics": {
                "prometheusQueryEndpoint": (
                    f"https://{name}-{digest(resource_id)[:4]}.{location}.prometheus.monitor.azure.com"
                )
            },
            "defaultIngestionSettings": {
                "dataCollectionRuleResourceId": f"{managed}/dataCollectionRules/{name}",
                "dataCollectionEndpointResourceId": f"{managed}/dataCollectionEndpoints/{name}",
            },
        },
        "dashboard:Grafana": {
            "properties": {
                "endpoint": f"https://{name}-{digest(resource_id)[:8]}.{location}.grafana.azure.com"
            }
        },
    }
    return known.get(kind, {})


def _principal(resource_id: str) -> dict[str, str]:
    return {"principalId": guid(resource_id, "principal"), "tenantId": TENANT}


def _cluster(inputs: dict[str, Any], name: str, resource_id: str, location: str) -> dict[str, Any]:
    host = f"{inputs.get('dnsPrefix') or inputs.get('fqdnSubdomain') or name}-{digest(resource_id)[:8]}"
    group = inputs.get("resourceGroupName")
    nodes = inputs.get("nodeResourceGroup") or f"MC_{group}_{name}_{location}"
    managed = (
        f"/subscriptions/{inputs.get('subscriptionId')}/resourcegroups/{nodes}"
        "/providers/Microsoft.ManagedIdentity/userAssignedIdentities"
    )

    def identity(whose: str) -> dict[str, str]:
        return {
            "clientId": guid(resource_id, whose, "client"),
            "objectId": guid(resource_id, whose, "object"),
            "resourceId": f"{managed}/{whose}-{name}",
        }

    return {
        "fqdn": f"{host}.hcp.{location}.azmk8s.io",
        "privateFQDN": f"{host}.{guid(resource_id)}.privatelink.{location}.azmk8s.io",
        "azurePortalFQDN": f"{host}.portal.hcp.{location}.azmk8s.io",
        "nodeResourceGroup": nodes,
        "currentKubernetesVersion": f"{inputs.get('kubernetesVersion') or '1.33'}.0"[:6],
        "oidcIssuerProfile": {
            "issuerURL": f"https://{location}.oic.prod-aks.azure.com/{TENANT}/{guid(resource_id, 'oidc')}/"
        },
        "identityProfile": {"kubeletidentity": identity("agentpool")},
        "addonProfiles": {
            addon: {"identity": identity(addon.lower())} for addon in inputs.get("addonProfiles") or {}
        },
    }


def _kubeconfigs(args: dict[str, Any], location: str) -> dict[str, Any]:
    cluster = str(args.get("resourceName"))
    server = f"https://{cluster}-{digest(cluster)[:8]}.hcp.{location}.azmk8s.io:443"
    certificate = base64.b64encode(f"certificate of {cluster}".encode()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": cluster, "cluster": {"server": server, "certificate-authority-data": certificate}}
        ],
        "users": [
            {"name": f"clusterUser_{args.get('resourceGroupName')}_{cluster}", "user": {"token": "rehearsal"}}
        ],
        "contexts": [
            {
                "name": cluster,
                "context": {
                    "cluster": cluster,
                    "user": f"clusterUser_{args.get('resourceGroupName')}_{cluster}",
                },
            }
        ],
        "current-context": cluster,
    }
    return {
        "kubeconfigs": [
            {"name": "clusterUser", "value": base64.b64encode(json.dumps(document).encode()).decode()}
        ]
    }


def _group(args: dict[str, Any], location: str) -> dict[str, Any]:
    return {
        "id": filled(_GROUP, args, ""),
        "name": args["resourceGroupName"],
        "location": location,
        "type": "Microsoft.Resources/resourceGroups",
        "azureApiVersion": "2024-03-01",
        "properties": {"provisioningState": "Succeeded"},
    }


def _account_keys(args: dict[str, Any], _: str) -> dict[str, Any]:
    value = base64.b64encode(digest(str(args.get("accountName"))).encode()).decode()
    return {
        "keys": [
            {"keyName": name, "value": value, "permissions": "Full", "creationTime": "2026-01-01T00:00:00Z"}
            for name in ("key1", "key2")
        ]
    }


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
    "azure-native:containerservice:listManagedClusterAdminCredentials": _kubeconfigs,
    "azure-native:containerservice:listManagedClusterUserCredentials": _kubeconfigs,
    "azure-native:operationalinsights:getSharedKeys": _workspace_keys,
    "azure-native:operationalinsights:getWorkspaceSharedKeys": _workspace_keys,
    "azure-native:resources:getResourceGroup": _group,
    "azure-native:storage:listStorageAccountKeys": _account_keys,
}


class AzureModel(CloudModel):
    """Azure: ids are paths under a subscription and a resource group; `location` is a provider setting."""

    region = LOCATION
    account = SUBSCRIPTION
    answers = ANSWERS
    strict = True

    def defaults(self, settings: dict[str, Any]) -> dict[str, str]:
        return {"subscriptionId": settings.get("subscriptionId") or SUBSCRIPTION}

    def region_of(self, inputs: dict[str, Any], settings: dict[str, Any]) -> str:
        found = next(
            (
                value
                for value in (inputs.get("location"), settings.get("location"))
                if isinstance(value, str) and value
            ),
            LOCATION,
        )
        return found.replace(" ", "").lower()

    def completed(
        self, resource: ResourceType | None, inputs: dict[str, Any], settings: dict[str, Any]
    ) -> dict[str, Any]:
        if (
            resource is None
            or "location" not in resource.inputs
            or inputs.get("location") is not None
            or not settings.get("location")
        ):
            return inputs
        return {**inputs, "location": settings["location"]}

    def name_property(self, token: str) -> str:
        return fields(template(token))[-1]

    def make_name(self, token: str, logical: str, random: str) -> str:
        if short(token) in _UUIDS:
            return guid(random)
        inside = len({*fields(template(token))} - {"subscriptionId", "resourceGroupName"}) > 1
        if short(token) in _WORLDWIDE:
            return (
                f"{logical}{random[:8]}"
                if short(token) == "keyvault:Vault"
                else re.sub(r"[^a-z0-9]", "", logical.lower()) + random[:8]
            )
        return logical if inside else f"{logical}{random[:8]}"

    def unique_key(self, token: str, inputs: dict[str, Any], scope: str) -> str:
        name = self.physical_name(token, inputs)
        if not name:
            return ""
        if short(token) in _WORLDWIDE:
            return f"{token}|{name.lower()}"
        return (
            f"{token}|"
            f"{self.make_id(token, {'subscriptionId': SUBSCRIPTION, **plain(inputs)}, name, '').lower()}"
        )

    def make_id(self, token: str, inputs: dict[str, Any], name: str, random: str) -> str:
        return filled(template(token), {**inputs, self.name_property(token): name}, random)

    def identity(
        self, token: str, inputs: dict[str, Any], name: str, resource_id: str, region: str
    ) -> Identity:
        own: dict[str, Any] = {
            "name": name,
            "type": resource_type(resource_id),
            "location": region,
            "provisioningState": "Succeeded",
        }
        if "SystemAssigned" in str(
            (inputs.get("identity") or {}).get("type", "") if isinstance(inputs.get("identity"), dict) else ""
        ):
            own["identity"] = _principal(resource_id)
        own |= own_outputs(short(token), inputs, name, resource_id, region)
        return Identity(
            token,
            name,
            resource_id,
            region,
            str(inputs.get("subscriptionId") or SUBSCRIPTION),
            own,
            sparse=True,
        )
