"""What several fields, or a field and a cloud, must say together. One small function per rule, its reason in
its docstring.

Used by `trainfleet.infra.spec.load`. A rule yields findings and never raises, also on a spec that breaks
other rules: it is judged with
all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.infra.aws import validation as aws
from trainfleet.infra.azure import validation as azure
from trainfleet.infra.gcp import validation as gcp
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation import layer, location, network, node_pools, services
from trainfleet.infra.validation.finding import Finding, Rule

RULES: tuple[Rule, ...] = (
    location.region_exists,
    location.account_is_named,
    location.region_has_zones,
    location.zones_are_in_the_region,
    location.local_has_no_cloud,
    location.local_stores_somewhere,
    location.local_only_settings,
    location.local_secrets,
    network.vpc_size,
    network.vpc_is_private,
    network.pods_have_addresses,
    network.endpoint_is_reachable,
    network.allowed_ranges_are_narrow,
    node_pools.accelerator_is_sold,
    node_pools.instance_type_fits,
    node_pools.fabric_is_there,
    node_pools.fabric_is_compact,
    node_pools.nodes_are_in_order,
    node_pools.names_are_unique,
    node_pools.capacity_is_sold,
    node_pools.price_is_known,
    node_pools.reservation_belongs,
    node_pools.reservations_are_not_shared,
    node_pools.blocks_start_empty,
    node_pools.labels_are_free,
    *aws.RULES,
    layer.certificates_are_signed,
    layer.queue_has_its_operator,
    layer.launchers_have_their_role,
    services.kubernetes_is_sold,
    services.logs_are_kept_as_sold,
    services.admins_are_roles,
    services.launchers_are_named,
    services.launchers_are_no_admins,
    services.filesystem_is_sold,
    services.operator_is_known,
    services.ray_can_authenticate,
    services.image_is_pinned,
    services.budget_alerts_are_in_order,
    services.budget_covers_what_always_runs,
    services.lists_have_no_doubles,
    services.tags_are_free,
    services.exceptions_have_not_ended,
    services.exceptions_name_policies,
    *gcp.RULES,
    *azure.RULES,
)


def broken(spec: PlatformSpec) -> Iterator[Finding]:
    """Every finding of every rule, in the order of the table."""
    for rule in RULES:
        yield from rule(spec)
