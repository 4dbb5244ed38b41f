"""What several fields, or a field and a cloud, must say together. One small function per rule, its reason in its docstring.

Used by `infra.check`. A rule yields findings and never raises, also on a spec that breaks other rules: it is judged with
all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from infra.rules import azure, gcp, hyperpod, layer, network, place, pools, services
from infra.rules.finding import Finding, Rule
from infra.spec import PlatformSpec

RULES: tuple[Rule, ...] = (
    place.region_exists,
    place.account_is_named,
    place.region_has_zones,
    place.zones_are_in_the_region,
    place.local_has_no_cloud,
    place.local_stores_somewhere,
    place.local_only_settings,
    place.local_secrets,
    network.vpc_size,
    network.vpc_is_private,
    network.pods_have_addresses,
    network.endpoint_is_reachable,
    network.allowed_ranges_are_narrow,
    pools.accelerator_is_sold,
    pools.instance_type_fits,
    pools.fabric_is_there,
    pools.fabric_is_compact,
    pools.nodes_are_in_order,
    pools.names_are_unique,
    pools.capacity_is_sold,
    pools.price_is_known,
    pools.reservation_belongs,
    pools.reservations_are_not_shared,
    pools.blocks_start_empty,
    pools.labels_are_free,
    *hyperpod.RULES,
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
