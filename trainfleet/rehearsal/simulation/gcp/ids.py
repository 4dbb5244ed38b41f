"""Google Cloud's resource ids: paths such as `projects/P/locations/L/clusters/N`, one template per type."""

from __future__ import annotations

from trainfleet.rehearsal.simulation.values import digest

PROJECT = "rehearsal-project"
PROJECT_NUMBER = "111122223333"
REGION = "us-central1"
VERSION = "1.33.5-gke.1080000"

_GLOBAL, _REGIONAL, _ZONAL = (
    "projects/{project}/global/",
    "projects/{project}/regions/{region}/",
    "projects/{project}/zones/{zone}/",
)
LOCAL = "projects/{project}/locations/{location}/"
IDS = {
    "artifactregistry/repository:Repository": LOCAL + "repositories/{repositoryId}",
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
    "container/cluster:Cluster": LOCAL + "clusters/{name}",
    "container/nodePool:NodePool": LOCAL + "clusters/{cluster}/nodePools/{name}",
    "dns/managedZone:ManagedZone": "projects/{project}/managedZones/{name}",
    "dns/recordSet:RecordSet": "projects/{project}/managedZones/{managedZone}/rrsets/{name}/{type}",
    "filestore/instance:Instance": LOCAL + "instances/{name}",
    "kms/cryptoKey:CryptoKey": "{keyRing}/cryptoKeys/{name}",
    "kms/keyRing:KeyRing": LOCAL + "keyRings/{name}",
    "logging/metric:Metric": "{name}",
    "logging/projectBucketConfig:ProjectBucketConfig": LOCAL + "buckets/{bucketId}",
    "logging/projectSink:ProjectSink": "projects/{project}/sinks/{name}",
    "lustre/instance:Instance": LOCAL + "instances/{instanceId}",
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

NAMES = {
    "artifactregistry/repository:Repository": "repositoryId",
    "logging/projectBucketConfig:ProjectBucketConfig": "bucketId",
    "lustre/instance:Instance": "instanceId",
    "projects/iAMCustomRole:IAMCustomRole": "roleId",
    "secretmanager/secret:Secret": "secretId",
    "serviceaccount/account:Account": "accountId",
}
"""The property that holds the physical name, where it is not `name`."""
HOSTS = {
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
