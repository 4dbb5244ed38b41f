"""The Google Cloud model: ids and self links, service account emails, and answers to functions.

An id is the resource's path (`projects/P/locations/L/clusters/N`), built from the table below. Project,
region and zone default to the provider's settings.
"""

from __future__ import annotations

import json
import re
from typing import Any

from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.cloud_model import Answer, CloudModel
from trainfleet.rehearsal.simulation.paths import filled, plural
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.schema import Package
from trainfleet.rehearsal.simulation.values import Identity, address, certificate, digest

PROJECT = "rehearsal-project"
PROJECT_NUMBER = "111122223333"
REGION = "us-central1"
VERSION = "1.33.5-gke.1080000"

_GLOBAL, _REGIONAL, _ZONAL = (
    "projects/{project}/global/",
    "projects/{project}/regions/{region}/",
    "projects/{project}/zones/{zone}/",
)
_LOCAL = "projects/{project}/locations/{location}/"
IDS = {
    "artifactregistry/repository:Repository": _LOCAL + "repositories/{repositoryId}",
    "billing/budget:Budget": "billingAccounts/{billingAccount}/budgets/{uuid}",
    "compute/address:Address": _REGIONAL + "addresses/{name}",
    "compute/disk:Disk": _ZONAL + "disks/{name}",
    "compute/firewall:Firewall": _GLOBAL + "firewalls/{name}",
    "compute/globalAddress:GlobalAddress": _GLOBAL + "addresses/{name}",
    "compute/instance:Instance": _ZONAL + "instances/{name}",
    "compute/network:Network": _GLOBAL + "networks/{name}",
    "compute/networkFirewallPolicy:NetworkFirewallPolicy": _GLOBAL + "firewallPolicies/{name}",
    "compute/networkPeering:NetworkPeering": "{network}/{name}",
    "compute/reservation:Reservation": _ZONAL + "reservations/{name}",
    "compute/resourcePolicy:ResourcePolicy": _REGIONAL + "resourcePolicies/{name}",
    "compute/route:Route": _GLOBAL + "routes/{name}",
    "compute/router:Router": _REGIONAL + "routers/{name}",
    "compute/routerNat:RouterNat": "{project}/{region}/{router}/{name}",
    "compute/subnetwork:Subnetwork": _REGIONAL + "subnetworks/{name}",
    "container/cluster:Cluster": _LOCAL + "clusters/{name}",
    "container/nodePool:NodePool": _LOCAL + "clusters/{cluster}/nodePools/{name}",
    "dns/managedZone:ManagedZone": "projects/{project}/managedZones/{name}",
    "dns/recordSet:RecordSet": "projects/{project}/managedZones/{managedZone}/rrsets/{name}/{type}",
    "filestore/instance:Instance": _LOCAL + "instances/{name}",
    "kms/cryptoKey:CryptoKey": "{keyRing}/cryptoKeys/{name}",
    "kms/keyRing:KeyRing": _LOCAL + "keyRings/{name}",
    "logging/metric:Metric": "{name}",
    "logging/projectBucketConfig:ProjectBucketConfig": _LOCAL + "buckets/{bucketId}",
    "logging/projectSink:ProjectSink": "projects/{project}/sinks/{name}",
    "lustre/instance:Instance": _LOCAL + "instances/{instanceId}",
    "monitoring/alertPolicy:AlertPolicy": "projects/{project}/alertPolicies/{number}",
    "monitoring/dashboard:Dashboard": f"projects/{PROJECT_NUMBER}/dashboards/{{uuid}}",
    "monitoring/notificationChannel:NotificationChannel": "projects/{project}/notificationChannels/{number}",
    "projects/iAMCustomRole:IAMCustomRole": "projects/{project}/roles/{roleId}",
    "projects/service:Service": "{project}/{service}",
    "projects/serviceIdentity:ServiceIdentity": "projects/{project}/services/{service}",
    "pubsub/subscription:Subscription": "projects/{project}/subscriptions/{name}",
    "pubsub/topic:Topic": "projects/{project}/topics/{name}",
    "secretmanager/secret:Secret": "projects/{project}/secrets/{secretId}",
    "secretmanager/secretVersion:SecretVersion": "{secret}/versions/{number}",
    "serviceaccount/account:Account": (
        "projects/{project}/serviceAccounts/{accountId}@{project}.iam.gserviceaccount.com"
    ),
    "servicenetworking/connection:Connection": "{network}:{service}",
    "storage/bucket:Bucket": "{name}",
    "storage/bucketObject:BucketObject": "{bucket}-{name}",
    "storage/managedFolder:ManagedFolder": "{bucket}/{name}",
}
"""The id template of a type. The default is `projects/P/locations/L/<kind>s/<name>`."""

_OWN_NAMES = {
    "artifactregistry/repository:Repository": "repositoryId",
    "logging/projectBucketConfig:ProjectBucketConfig": "bucketId",
    "lustre/instance:Instance": "instanceId",
    "projects/iAMCustomRole:IAMCustomRole": "roleId",
    "secretmanager/secret:Secret": "secretId",
    "serviceaccount/account:Account": "accountId",
}
"""The property that holds the physical name, where it is not `name`."""
_LONG_NAMES = (
    "secretmanager/secret:Secret",
    "projects/iAMCustomRole:IAMCustomRole",
    "logging/projectBucketConfig:ProjectBucketConfig",
)
"""Types whose output `name` is the full path."""
_BARE = ("cluster", "router", "managedZone", "bucket")
_LABELS = {
    "container/cluster:Cluster": ("resourceLabels",),
    "monitoring/notificationChannel:NotificationChannel": ("userLabels",),
}
_HOSTS = {
    "compute": "https://www.googleapis.com/compute/v1/",
    "container": "https://container.googleapis.com/v1/",
}
_FIRST_ZONES = {"us-east1": "bcd", "europe-west1": "bcd", "us-central1": "abcf"}


def short(token: str) -> str:
    """Return a type token without its package."""
    return token.split(":", 1)[1]


def zones(region: str) -> list[str]:
    """Return the zones of a region. Source: cloud.google.com/compute/docs/regions-zones."""
    return [f"{region}-{letter}" for letter in _FIRST_ZONES.get(region, "abc")]


def number(seed: str, digits: int) -> str:
    """Return a decimal number with `digits` digits that depends only on the seed."""
    return str(10 ** (digits - 1) + int(digest(seed), 16) % (9 * 10 ** (digits - 1)))


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
            f"{_HOSTS['compute']}projects/{project}/zones/{zone}/"
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


def _client_config(args: dict[str, Any], region: str) -> dict[str, Any]:
    where = f"projects/{args['project']}/regions/{region}/zones/{args['zone']}"
    return {
        **{key: args[key] for key in ("project", "zone")},
        "id": where,
        "region": region,
        "accessToken": "rehearsal",
        "defaultLabels": {},
    }


def _project(args: dict[str, Any], _: str) -> dict[str, Any]:
    project = args.get("projectId") or args["project"]
    return {
        "id": f"projects/{project}",
        "projectId": project,
        "name": project,
        "number": PROJECT_NUMBER,
        "orgId": "222233334444",
        "folderId": "",
        "billingAccount": "012345-6789AB-CDEF01",
        "autoCreateNetwork": False,
        "deletionPolicy": "PREVENT",
        "labels": {},
        "effectiveLabels": {},
        "pulumiLabels": {},
        "tags": {},
    }


def _zones(args: dict[str, Any], region: str) -> dict[str, Any]:
    return {
        "id": f"projects/{args['project']}/regions/{region}",
        "names": zones(region),
        "project": args["project"],
        "region": region,
    }


def _engine_versions(args: dict[str, Any], region: str) -> dict[str, Any]:
    channels = dict.fromkeys(("RAPID", "REGULAR", "STABLE", "EXTENDED"), VERSION)
    return {
        "id": digest(region)[:12],
        "project": args["project"],
        "location": args.get("location") or region,
        "defaultClusterVersion": VERSION,
        "latestMasterVersion": VERSION,
        "latestNodeVersion": VERSION,
        "validMasterVersions": [VERSION],
        "validNodeVersions": [VERSION],
        "releaseChannelDefaultVersion": channels,
        "releaseChannelLatestVersion": channels,
        "releaseChannelUpgradeTargetVersion": channels,
    }


def _storage_agent(args: dict[str, Any], _: str) -> dict[str, Any]:
    email = f"service-{PROJECT_NUMBER}@gs-project-accounts.iam.gserviceaccount.com"
    return {
        "id": email,
        "project": args["project"],
        "emailAddress": email,
        "member": f"serviceAccount:{email}",
    }


def _compute_account(args: dict[str, Any], _: str) -> dict[str, Any]:
    email = f"{PROJECT_NUMBER}-compute@developer.gserviceaccount.com"
    name = f"projects/{args['project']}/serviceAccounts/{email}"
    return {
        "id": name,
        "name": name,
        "project": args["project"],
        "email": email,
        "member": f"serviceAccount:{email}",
        "uniqueId": number(email, 21),
        "displayName": "Compute Engine default service account",
    }


def _iam_policy(args: dict[str, Any], _: str) -> dict[str, Any]:
    document = json.dumps({"bindings": args.get("bindings", [])}, sort_keys=True)
    return {
        "id": digest(document)[:12],
        "policyData": document,
        **{key: args[key] for key in ("bindings", "auditConfigs") if key in args},
    }


def _key_ring(args: dict[str, Any], region: str) -> dict[str, Any]:
    return {
        **args,
        "id": (
            f"projects/{args['project']}/locations/{args.get('location') or region}/keyRings/{args['name']}"
        ),
    }


def _log_encryption(args: dict[str, Any], _: str) -> dict[str, Any]:
    name = f"projects/{args['project']}/cmekSettings"
    writer = f"cmek-p{PROJECT_NUMBER}@gcp-sa-logging.iam.gserviceaccount.com"
    return {
        "id": name,
        "name": name,
        "project": args["project"],
        "kmsKeyName": "",
        "kmsKeyVersionName": "",
        "serviceAccountId": writer,
    }


ANSWERS: dict[str, Answer] = {
    "gcp:organizations/getClientConfig:getClientConfig": _client_config,
    "gcp:organizations/getProject:getProject": _project,
    "gcp:organizations/getIAMPolicy:getIAMPolicy": _iam_policy,
    "gcp:compute/getZones:getZones": _zones,
    "gcp:compute/getDefaultServiceAccount:getDefaultServiceAccount": _compute_account,
    "gcp:container/getEngineVersions:getEngineVersions": _engine_versions,
    "gcp:logging/getProjectCmekSettings:getProjectCmekSettings": _log_encryption,
    "gcp:storage/getProjectServiceAccount:getProjectServiceAccount": _storage_agent,
    "gcp:kms/getKMSKeyRing:getKMSKeyRing": _key_ring,
    "gcp:kms/getKMSCryptoKey:getKMSCryptoKey": lambda args, _: {
        **args,
        "id": f"{args['keyRing']}/cryptoKeys/{args['name']}",
        "purpose": "ENCRYPT_DECRYPT",
    },
}


_REGION = re.compile(r"(?:.*/)?([a-z]+-[a-z]+\d+)(-[a-z])?")
_ZONES = (
    "zone",
    "zones",
    "nodeLocations",
    "distributionPolicyZones",
    "replicaZones",
    "locationId",
    "alternativeLocationId",
)


def elsewhere(inputs: dict[str, Any]) -> list[Mistake]:
    """Return the zones in plain inputs that are outside the resource's region.

    Source: cloud.google.com/compute/docs/regions-zones.
    """
    at = next(
        (match for key in ("region", "location") if (match := _REGION.fullmatch(str(inputs.get(key) or "")))),
        None,
    )
    found: list[Mistake] = []
    for name in _ZONES if at else ():
        given = inputs.get(name)
        for index, zone in enumerate(given if isinstance(given, list) else [given]):
            where = _REGION.fullmatch(str(zone or ""))
            if at and where and where[2] and where[1] != at[1]:
                path = f"{name}[{index}]" if isinstance(given, list) else name
                found.append(Mistake(path, f"{zone!r} is not in {at[1]}", f"a zone of it is like {at[1]}-a"))
    return found


class GcpModel(CloudModel):
    """Google Cloud: ids are paths, names are lowercase, and tags are called `labels`."""

    region = REGION
    account = PROJECT
    answers = ANSWERS

    def check(self, package: Package, token: str, inputs: dict[str, Any]) -> list[Mistake]:
        return [*super().check(package, token, inputs), *elsewhere(inputs)]

    def defaults(self, settings: dict[str, Any]) -> dict[str, str]:
        region = self.region_of({}, settings)
        return {
            "project": settings.get("project") or PROJECT,
            "region": region,
            "zone": settings.get("zone") or zones(region)[0],
        }

    def region_of(self, inputs: dict[str, Any], settings: dict[str, Any]) -> str:
        for value in (
            inputs.get("region"),
            inputs.get("location"),
            inputs.get("zone"),
            settings.get("region"),
            settings.get("zone"),
        ):
            if isinstance(value, str) and (
                found := re.fullmatch(r"(?:.*/)?([a-z]+-[a-z]+\d+)(?:-[a-z])?", value)
            ):
                return found.group(1)
        return REGION

    def name_property(self, token: str) -> str:
        return _OWN_NAMES.get(short(token), "name")

    def make_name(self, token: str, logical: str, random: str) -> str:
        name = f"{logical}-{random[:7]}"
        return name if short(token) == "projects/iAMCustomRole:IAMCustomRole" else name.lower()

    def unique_key(self, token: str, inputs: dict[str, Any], scope: str) -> str:
        template = IDS.get(short(token), "")
        name = self.physical_name(token, inputs)
        if not name or f"{{{self.name_property(token)}}}" not in template:
            return ""
        return (
            f"{token}|{self.make_id(token, {'project': PROJECT, 'region': scope, **plain(inputs)}, name, '')}"
        )

    def make_id(self, token: str, inputs: dict[str, Any], name: str, random: str) -> str:
        kind = short(token)
        region = self.region_of(inputs, {})
        values = {"location": region, "zone": zones(region)[0], **inputs, self.name_property(token): name}
        values |= {
            key: str(values[key]).rsplit("/", 1)[-1] for key in (*_BARE, "region", "zone") if key in values
        }
        if kind in IDS:
            return filled(IDS[kind], values, random)
        if "member" in inputs or kind.endswith(("IAMBinding", "IamBinding")):
            place = ("region", "zone", "project") if not kind.startswith("projects/") else ("region", "zone")
            target = next(
                (
                    str(inputs[key])
                    for key in inputs
                    if key not in ("member", "members", "role", "condition", *place)
                ),
                PROJECT,
            )
            return "/".join(str(part) for part in (target, inputs.get("role"), inputs.get("member")) if part)
        return filled(f"{_LOCAL}{plural(kind.rsplit(':', 1)[-1])}/{name}", values, random)

    def identity(
        self, token: str, inputs: dict[str, Any], name: str, resource_id: str, region: str
    ) -> Identity:
        kind = short(token)
        own = {
            "project": inputs.get("project"),
            "region": region,
            "location": region,
            "zone": inputs.get("zone"),
        }
        if host := _HOSTS.get(kind.split("/")[0]):
            own["selfLink"] = host + resource_id
        if kind in _LONG_NAMES:
            own["name"] = resource_id
        own |= own_outputs(kind, inputs, name, resource_id, region)
        return Identity(
            token, name, resource_id, region, str(inputs.get("project") or PROJECT), own, sparse=True
        )

    def drift_path(self, token: str) -> tuple[str, ...]:
        return _LABELS.get(short(token), ("labels",))
