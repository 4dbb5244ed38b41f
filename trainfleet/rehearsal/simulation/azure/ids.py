"""Azure's resource ids: paths under a subscription and a resource group, one template per type.

An id is `/subscriptions/S/resourceGroups/G/providers/Microsoft.X/types/name`, built from the table below.
"""

from __future__ import annotations

import re

from trainfleet.rehearsal.simulation.paths import plural
from trainfleet.rehearsal.simulation.schema import packages

SUBSCRIPTION = "00000000-1111-2222-3333-444444444444"
TENANT = "11111111-2222-3333-4444-555555555555"
LOCATION = "eastus"

GROUP = "/subscriptions/{subscriptionId}/resourceGroups/{resourceGroupName}"
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
    "resources:ResourceGroup": GROUP,
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


def short(token: str) -> str:
    """Return a type token without its package."""
    return token.split(":", 1)[1]


def template(token: str) -> str:
    """Return the id of a type with its inputs in braces. Types outside the table are derived from the SDK."""
    kind = short(token)
    tail = IDS.get(kind) or _derived(token)
    return tail if tail.startswith(("/", "{")) else f"{GROUP}/providers/{tail}"


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
