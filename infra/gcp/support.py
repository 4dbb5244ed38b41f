"""Google Cloud as the rest of the code sees it. Imports no Pulumi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.cloud_support import (
    AccountId,
    CloudSupport,
    HubId,
    IdentityIds,
    NetworkIds,
    RegistryLogin,
)
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.gcp.allocatable import node_allocatable
from trainfleet.infra.gcp.costs import node_disk, standing_costs
from trainfleet.infra.gcp.layout import ACCOUNT_PURPOSES, NODE_ROLES, account_purposes, workload_pool
from trainfleet.infra.gcp.validation import RULES
from trainfleet.infra.spec.schema import Capacity, PlatformSpec

NETWORK = r"projects/[a-z0-9:.-]+/global/networks/[a-z0-9-]+"


TOPOLOGY_LABELS = (
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    "cloud.google.com/gce-topology-host",
)


def topology_levels(machine: Machine) -> tuple[str, ...]:
    """The labels that GKE sets on nodes of A3 Ultra and A4 (AI Hypercomputer, Schedule GKE workloads with
    Topology Aware Scheduling).
    """
    return TOPOLOGY_LABELS if machine.instance_type.startswith(("a3-ultragpu-", "a4-")) else ()


def account_rights(spec: PlatformSpec) -> Mapping[str, Mapping[str, Any]]:
    """What the owner grants: on the project to each service account that this platform needs, and on the
    account to the identity that applies. The platform grants the rest on its own bucket, images and secrets.
    """
    use, bind = "roles/iam.serviceAccountUser", "roles/iam.serviceAccountAdmin"
    # To bind pods to an account is to change its policy.
    bound: dict[str, Any] = {"project_roles": [], "applier_roles": [use, bind], "binds": workload_pool(spec)}
    nodes: dict[str, Any] = {
        "project_roles": [*NODE_ROLES.values()],
        "applier_roles": [use],
    }
    rights = {"nodes": nodes, "training": bound, "secrets": bound}
    return {purpose: rights[purpose] for purpose in account_purposes(spec)}


SUPPORT = CloudSupport(
    cloud=Cloud.GCP,
    # Google Cloud, encryption in transit: all traffic between machines of a VPC network and its peers.
    encrypting_machines=".*",
    drain_minutes=60,  # GKE guide, node upgrade strategies: then it evicts the pods
    endpoints=("dns", "public", "private"),
    hub=HubId("network", NETWORK, "projects/my-hub/global/networks/hub"),
    existing_network=NetworkIds(
        network=NETWORK,
        network_example="projects/my-host/global/networks/shared",
        subnet=r"projects/[a-z0-9:.-]+/regions/[a-z0-9-]+/subnetworks/[a-z0-9-]+",
        subnet_example="projects/my-host/regions/us-central1/subnetworks/training",
        subnets=("nodes",),
        ranges=("pods", "services"),
        no_filesystems=("lustre", "nfs"),
        no_fabric=True,
    ),
    identities=IdentityIds(
        noun="service account",
        # IAM, service accounts: the address has the id and the project.
        pattern=r"[a-z]([a-z0-9-]{4,28}[a-z0-9])@(?P<account>[a-z][a-z0-9-]*)\.iam\.gserviceaccount\.com",
        example="training-nodes@my-project-123456.iam.gserviceaccount.com",
        purposes=ACCOUNT_PURPOSES,
        needed=account_purposes,
        rights=account_rights,
    ),
    extra="gcp",
    modules=("pulumi", "pulumi_gcp", "pulumi_kubernetes"),
    tools=("gcloud", "gke-gcloud-auth-plugin"),
    # Artifact Registry guide, authentication to Docker repositories: access token.
    registry_login=RegistryLogin(
        r"[a-z0-9-]+-docker\.pkg\.dev",
        ("gcloud", "auth", "print-access-token"),
        user="oauth2accesstoken",
    ),
    packages=("gcp", "google-native"),
    provider_settings=(("gcp:project", "account"), ("gcp:region", "region")),
    region_example="us-central1",
    # Resource Manager, project ids.
    account=AccountId(
        "project", r"[a-z][a-z0-9-]{4,28}[a-z0-9]", "the project's id, for example my-project-123456"
    ),
    capacities=(
        Capacity.ON_DEMAND,
        Capacity.SPOT,
        Capacity.RESERVED,
        Capacity.FLEX_START,
        Capacity.QUEUED,
    ),
    allocatable=node_allocatable,
    topology_levels=topology_levels,
    rules=RULES,
    standing_costs=standing_costs,
    node_disk=node_disk,
)
