"""All validation rules: those of every cloud, then those of the spec's own cloud."""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.infra.cloud_support import support
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation import (
    capacities,
    existing_identities,
    existing_network,
    layer,
    location,
    network,
    node_pools,
    services,
    topologies,
    versions,
)
from trainfleet.infra.validation.finding import Finding, Rule

COMMON_RULES: tuple[Rule, ...] = (
    location.region_is_named,
    location.account_is_named,
    location.existing_cluster_settings,
    versions.kubernetes_is_supported,
    versions.pool_versions_are_in_skew,
    versions.image_releases_match,
    network.endpoint_is_reachable,
    network.network_has_egress,
    network.network_can_be_encrypted,
    network.public_ranges_are_narrow,
    network.private_ranges_are_connected,
    network.hub_is_well_formed,
    existing_network.existing_network_is_complete,
    existing_network.existing_network_has_its_own_settings,
    existing_network.existing_network_has_what_pools_need,
    existing_identities.existing_identities_are_complete,
    existing_identities.identities_are_distinct,
    existing_identities.boundary_has_an_effect,
    node_pools.kind_is_offered,
    node_pools.accelerator_is_sold,
    node_pools.instance_type_fits,
    node_pools.machine_is_in_the_region,
    node_pools.fabric_exists,
    node_pools.nodes_are_in_order,
    node_pools.names_are_unique,
    capacities.capacities_are_distinct,
    capacities.hyperpod_has_one_capacity,
    capacities.capacity_block_belongs,
    capacities.groups_have_unique_names,
    node_pools.capacity_is_sold,
    node_pools.price_is_known,
    node_pools.reservation_belongs,
    node_pools.placement_group_belongs,
    node_pools.fast_image_pull_belongs,
    node_pools.reservations_are_not_shared,
    node_pools.blocks_start_empty,
    node_pools.labels_are_free,
    topologies.topology_has_its_queue,
    topologies.topology_levels_are_known,
    topologies.topology_has_its_nodes,
    layer.certificates_are_signed,
    layer.redis_is_whole,
    layer.queue_has_its_operator,
    layer.receivers_have_their_sender,
    layer.receivers_are_complete,
    layer.launchers_have_their_role,
    layer.a_launcher_token_has_its_account,
    layer.pods_are_changed_by_valid_patches,
    services.launchers_are_not_admins,
    services.runs_are_not_kept_longer,
    services.operator_is_known,
    services.ray_can_authenticate,
    services.image_is_pinned,
    services.budget_alerts_are_in_order,
    services.budget_covers_standing_nodes,
    services.lists_have_no_duplicates,
    services.tags_are_free,
    services.exceptions_have_not_expired,
    services.exceptions_are_narrow,
    services.exceptions_name_policies,
)
NOTICES: tuple[Rule, ...] = (versions.ends_of_support, services.exceptions_of_own_policies)
"""What a spec of any cloud is warned about."""


def rules_of(spec: PlatformSpec) -> tuple[Rule, ...]:
    """The rules that apply to a spec."""
    return (*COMMON_RULES, *support(spec.cloud).rules)


def violations(spec: PlatformSpec) -> Iterator[Finding]:
    """Every finding of every rule that applies, in the order of the rules. Node groups of one pool may have
    the same finding, which is reported once.
    """
    yield from dict.fromkeys(finding for rule in rules_of(spec) for finding in rule(spec))


def notices(spec: PlatformSpec) -> Iterator[Finding]:
    """Every finding that is a warning."""
    rules = (*NOTICES, *support(spec.cloud).notices)
    yield from dict.fromkeys(finding for rule in rules for finding in rule(spec))
