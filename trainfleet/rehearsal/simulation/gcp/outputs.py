"""The outputs of Google Cloud's resource types whose format a program may depend on."""

from __future__ import annotations

from typing import Any

from trainfleet.rehearsal.simulation.gcp.ids import HOSTS, PROJECT, PROJECT_NUMBER, VERSION, number, zones
from trainfleet.rehearsal.simulation.values import address, certificate, digest


def own_outputs(
    kind: str, inputs: dict[str, Any], name: str, resource_id: str, region: str
) -> dict[str, Any]:
    """Return the outputs of a type whose format a program may depend on."""
    project = str(inputs.get("project", PROJECT))
    seed = resource_id
    if kind == "serviceaccount/account:Account":
        email = f"{name}@{project}.iam.gserviceaccount.com"
        return {
            "email": email,
            "member": f"serviceAccount:{email}",
            "uniqueId": number(seed, 21),
            "name": resource_id,
        }
    if kind == "projects/serviceIdentity:ServiceIdentity":
        email = (
            f"service-{PROJECT_NUMBER}@gcp-sa-{str(inputs.get('service', '')).split('.')[0]}"
            ".iam.gserviceaccount.com"
        )
        return {"email": email, "member": f"serviceAccount:{email}"}
    if kind == "container/cluster:Cluster":
        endpoint = {"endpoint": f"gke-{digest(seed)[:20]}-{PROJECT_NUMBER}.{region}.gke.goog"}
        return {
            "endpoint": address(seed, "endpoint"),
            "masterAuth": {
                "clusterCaCertificate": certificate(seed),
                "clientCertificate": "",
                "clientKey": "",
            },
            "masterVersion": inputs.get("minMasterVersion") or VERSION,
            "nodeVersion": inputs.get("nodeVersion") or VERSION,
            "controlPlaneEndpointsConfig": {
                "dnsEndpointConfig": endpoint,
                "ipEndpointsConfig": {"enabled": True},
            },
            "privateClusterConfig": {
                "privateEndpoint": address(seed, "private"),
                "publicEndpoint": address(seed, "public"),
            },
        }
    if kind == "container/nodePool:NodePool":
        where = [
            f"{HOSTS['compute']}projects/{project}/zones/{zone}/"
            for zone in inputs.get("nodeLocations") or zones(region)[:3]
        ]
        group = f"gke-{name}-{digest(seed)[:8]}-grp"
        return {
            "instanceGroupUrls": [f"{place}instanceGroupManagers/{group}" for place in where],
            "managedInstanceGroupUrls": [f"{place}instanceGroups/{group}" for place in where],
            "version": VERSION,
        }
    return _storage_and_network(kind, inputs, name, resource_id, region)


def _storage_and_network(
    kind: str, inputs: dict[str, Any], name: str, resource_id: str, region: str
) -> dict[str, Any]:
    project, here = str(inputs.get("project", PROJECT)), address(resource_id, "address")
    location = str(inputs.get("location") or region)
    known: dict[str, dict[str, Any]] = {
        "storage/bucket:Bucket": {
            "url": f"gs://{name}",
            "selfLink": f"https://www.googleapis.com/storage/v1/b/{name}",
        },
        "artifactregistry/repository:Repository": {
            "registryUri": f"{location}-docker.pkg.dev/{project}/{name}",
            "name": name,
        },
        "compute/address:Address": {"address": here},
        "compute/globalAddress:GlobalAddress": {"address": here},
        "compute/subnetwork:Subnetwork": {"gatewayAddress": here},
        "compute/network:Network": {
            "numericId": number(resource_id, 19),
            "networkId": number(resource_id, 19),
        },
        "filestore/instance:Instance": {"networks": [{"ipAddresses": [here]}]},
        "lustre/instance:Instance": {
            "mountPoint": f"{here}@tcp:/{inputs.get('filesystem', 'lustre')}",
            "name": resource_id,
        },
        "logging/projectSink:ProjectSink": {
            "writerIdentity": (
                f"serviceAccount:service-{PROJECT_NUMBER}@gcp-sa-logging.iam.gserviceaccount.com"
            ),
        },
        "monitoring/notificationChannel:NotificationChannel": {"name": resource_id},
        "monitoring/alertPolicy:AlertPolicy": {"name": resource_id},
        "billing/budget:Budget": {"name": resource_id.rsplit("/", 1)[-1]},
        "secretmanager/secretVersion:SecretVersion": {
            "name": resource_id,
            "version": resource_id.rsplit("/", 1)[-1],
        },
    }
    return known.get(kind, {})
