"""The outputs of Azure's resource types whose format a program may depend on."""

from __future__ import annotations

from typing import Any

from trainfleet.rehearsal.simulation.azure.ids import TENANT
from trainfleet.rehearsal.simulation.paths import guid
from trainfleet.rehearsal.simulation.values import address, digest


def own_outputs(  # noqa: PLR0911 - one per type
    kind: str, inputs: dict[str, Any], name: str, resource_id: str, location: str
) -> dict[str, Any]:
    """Return the outputs of a type whose format a program may depend on."""
    if kind == "managedidentity:UserAssignedIdentity":
        return principal(resource_id) | {"clientId": guid(resource_id, "client")}
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
    if kind == "storage:StorageAccountStaticWebsite":
        return {"containerName": "$web"}
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


def principal(resource_id: str) -> dict[str, str]:
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
