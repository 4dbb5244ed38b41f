"""Google Cloud as the rest of the code sees it. Imports no Pulumi."""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.infra.catalog.cost import nat_costs, shared_filesystem_cost
from trainfleet.infra.cloud_support import AccountId, CloudSupport, HubId, NetworkIds, StandingCost
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.gcp.validation import RULES
from trainfleet.infra.spec.schema import Capacity, PlatformSpec

NETWORK = r"projects/[a-z0-9:.-]+/global/networks/[a-z0-9-]+"


def standing_costs(spec: PlatformSpec) -> Iterator[StandingCost]:
    """The control plane, one NAT for the whole region, the shared filesystem."""
    yield StandingCost("control-plane", 1)
    yield from nat_costs(spec, 1)
    yield from shared_filesystem_cost(spec)


SUPPORT = CloudSupport(
    cloud=Cloud.GCP,
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
    extra="gcp",
    modules=("pulumi", "pulumi_gcp", "pulumi_kubernetes"),
    tools=("gcloud", "gke-gcloud-auth-plugin"),
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
    rules=RULES,
    standing_costs=standing_costs,
)
