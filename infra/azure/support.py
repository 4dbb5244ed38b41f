"""Azure as the rest of the code sees it. Imports no Pulumi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainfleet.infra.azure.allocatable import node_allocatable
from trainfleet.infra.azure.costs import node_disk, standing_costs
from trainfleet.infra.azure.layout import (
    IDENTITY_PURPOSES,
    PRIVATE_ZONES,
    cluster_name,
    identity_purposes,
)
from trainfleet.infra.azure.sizes import DRAIN_MINUTES, INLINE_NODES, INLINE_POOL
from trainfleet.infra.azure.validation import RULES
from trainfleet.infra.azure.validation_pools import NOTICES
from trainfleet.infra.cloud_support import (
    AccountId,
    CloudSupport,
    ExtraPool,
    HubId,
    IdentityIds,
    NetworkIds,
    RegistryLogin,
    ReservationId,
)
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.schema import Capacity, PlatformSpec


def extra_pools(spec: PlatformSpec) -> tuple[ExtraPool, ...]:
    """The inline pool that AKS requires."""
    return (ExtraPool(INLINE_POOL, *INLINE_NODES[spec.production]),)


VIRTUAL_NETWORK = (
    r"/subscriptions/[0-9a-fA-F-]{36}/resourceGroups/[^/]+/providers/Microsoft\.Network/virtualNetworks/[^/]+"
)


def identity_rights(spec: PlatformSpec) -> Mapping[str, Mapping[str, Any]]:
    """What the owner grants: to each managed identity that this platform needs, and on the identity to the
    one that applies. The platform grants the rest on its own keys, disks, subnets, containers and images.
    """
    assigned: dict[str, Any] = {"roles": [], "applier_roles": ["Managed Identity Operator"]}
    # A federated credential is a part of its identity.
    bound: dict[str, Any] = {
        "roles": [],
        "applier_roles": ["Managed Identity Contributor"],
        "credential": cluster_name(spec),
    }
    operates = {**assigned, "roles": ["Managed Identity Operator on the identity `kubelet`"]}
    known = {"cluster": operates, "training": bound, "secrets": bound}
    return {purpose: known.get(purpose, assigned) for purpose in identity_purposes(spec)}


ENCRYPTING_MACHINES = (
    r"Standard_([DE]\d+[a-z]*_v([5-9]|\d\d)|NC\d+[a-z]+_H100_v5|ND\d+[a-z]+(_NDR)?_GB[23]00_v6)"
)
"""Virtual Network encryption, requirements (2024-12-11): all D and E series from v5 on, NC H100 v5, ND GB200
v6 and ND GB300 v6. Its limitations advise against it in networks with other machines.
"""

SUPPORT = CloudSupport(
    cloud=Cloud.AZURE,
    pool_skew=2,  # AKS API, agent pool, orchestratorVersion: within two minor versions of the control plane
    drain_minutes=DRAIN_MINUTES,
    encrypting_machines=ENCRYPTING_MACHINES,
    hub=HubId(
        "virtual network",
        VIRTUAL_NETWORK,
        "its resource id: /subscriptions/.../providers/Microsoft.Network/virtualNetworks/hub",
        gateway=True,
    ),
    existing_network=NetworkIds(
        network=VIRTUAL_NETWORK,
        network_example="/subscriptions/.../providers/Microsoft.Network/virtualNetworks/shared",
        subnet=VIRTUAL_NETWORK + "/subnets/[^/]+",
        subnet_example="/subscriptions/.../virtualNetworks/shared/subnets/nodes",
        subnets=("nodes", "endpoints", "control-plane"),
        dns_zones=tuple(PRIVATE_ZONES),
        no_filesystems=("lustre",),
    ),
    identities=IdentityIds(
        noun="managed identity",
        pattern=r"/subscriptions/(?P<account>[0-9a-fA-F-]{36})/[rR]esource[gG]roups/[^/]+/providers"
        r"/Microsoft\.ManagedIdentity/userAssignedIdentities/[^/]+",
        example="/subscriptions/.../providers/Microsoft.ManagedIdentity/userAssignedIdentities/kubelet",
        purposes=IDENTITY_PURPOSES,
        needed=identity_purposes,
        rights=identity_rights,
    ),
    extra="azure",
    modules=("pulumi", "pulumi_azure_native", "pulumi_kubernetes"),
    tools=("az", "kubelogin"),
    # Container Registry guide, individual login: az acr login with --expose-token.
    registry_login=RegistryLogin(
        r"(?P<name>[a-z0-9]+)\.azurecr\.io",
        ("az", "acr", "login", "--name", "{name}", "--expose-token", "--query", "accessToken", "-o", "tsv"),
        user="00000000-0000-0000-0000-000000000000",
    ),
    packages=("azure-native", "azure"),
    provider_settings=(("azure-native:location", "region"), ("azure-native:subscriptionId", "account")),
    region_example="eastus",
    account=AccountId(
        "subscription",
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "the subscription's id, for example 00000000-1111-2222-3333-444444444444",
    ),
    capacities=(Capacity.ON_DEMAND, Capacity.SPOT, Capacity.RESERVED),
    reservations={"nodes": ReservationId(example="its resource id")},
    # Spot nodes are bought for at most the on-demand price (AKS, spotMaxPrice -1).
    spot_is_capped=True,
    allocatable=node_allocatable,
    rules=RULES,
    notices=NOTICES,
    extra_pools=extra_pools,
    standing_costs=standing_costs,
    node_disk=node_disk,
)
