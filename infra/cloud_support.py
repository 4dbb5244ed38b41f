"""CloudSupport: everything that the rest of the code asks about a cloud. Each infra/<cloud>/support.py has
one.

Neither this module nor any support.py imports Pulumi: a cloud's SDK is imported only by
`CloudSupport.builder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainfleet.errors import MissingToolError, Problem
from trainfleet.infra.catalog.allocatable import Allocatable
from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.schema import Capacity, PlatformSpec
from trainfleet.infra.validation.finding import Rule

if TYPE_CHECKING:
    from trainfleet.infra.platform import Platform

Builder = Callable[[PlatformSpec], "Platform"]


@dataclass(frozen=True)
class AccountId:
    """What a cloud calls the account that pays, and how its id is written."""

    noun: str
    pattern: str
    example: str
    required: bool = True


@dataclass(frozen=True)
class ReservationId:
    """What a cloud calls reserved capacity, and how its id is written."""

    noun: str = "reservation"
    pattern: str = r".+"
    example: str = "its name"
    in_placement_group: bool = False
    """Whether it may have been created in a placement group, which its nodes must then name."""


@dataclass(frozen=True)
class HubId:
    """What a cloud calls the network that a platform is connected to, and how its id is written."""

    noun: str
    pattern: str
    example: str
    gateway: bool = False
    """Whether the platform has to declare that clients come through the hub's gateway."""


@dataclass(frozen=True, kw_only=True)
class NetworkIds:
    """How the parts of an existing network are written in a spec."""

    network: str
    """Pattern of the network's id."""
    network_example: str
    subnet: str
    """Pattern of a subnet's id."""
    subnet_example: str
    subnets: tuple[str, ...] = ()
    """The names of the subnets that a platform needs, unless there is one by zone."""
    ranges: tuple[str, ...] = ()
    """The secondary ranges that it needs."""
    dns_zones: tuple[str, ...] = ()
    """The private DNS zones that it can use."""
    no_filesystems: tuple[str, ...] = ()
    """Kinds of shared filesystem that need subnets or peerings which only a network of its own has."""
    no_fabric: bool = False
    """Whether `interconnect: best` needs networks next to its own."""

    @property
    def by_zone(self) -> bool:
        """Whether subnets are in one zone each."""
        return not self.subnets


@dataclass(frozen=True, kw_only=True)
class IdentityIds:
    """What a cloud calls an identity, how its id is written, and which identities a platform has."""

    noun: str
    pattern: str
    """Pattern of an id. The group `account` is who owns the identity."""
    example: str
    purposes: tuple[str, ...]
    """Every purpose that a platform may need an identity for."""
    needed: Callable[[PlatformSpec], tuple[str, ...]]
    """The purposes that this platform needs one for."""
    rights: Callable[[PlatformSpec], Mapping[str, Mapping[str, Any]]]
    """By purpose: what the owner of an existing identity must allow it."""
    boundary: str = ""
    """Pattern of the policy that bounds created identities; empty = the cloud has none."""


@dataclass(frozen=True)
class RegistryLogin:
    """How the cloud's own program prints the password of an image registry."""

    host: str
    """Pattern of a registry's host name."""
    command: tuple[str, ...]
    """Groups of the pattern are written in braces."""
    user: str


@dataclass(frozen=True)
class StandingCost:
    """A row of prices.toml that is billed around the clock, and how many units of it a platform has."""

    row: str
    count: float
    name: str = ""
    """Name on the bill; empty = the row's."""
    most: float | None = None
    """The count with every pool at its largest; None = the same."""


@dataclass(frozen=True)
class ExtraPool:
    """A pool of CPU nodes that the cloud itself requires in addition to those of the spec."""

    name: str
    min_nodes: int
    max_nodes: int


@dataclass(frozen=True)
class SettingProblem:
    """A setting of the cloud's Pulumi provider that contradicts the spec."""

    key: str
    what: str
    fix: str


SettingsCheck = Callable[[PlatformSpec, Mapping[str, Any]], Iterator[SettingProblem]]


@dataclass(frozen=True, kw_only=True)
class CloudSupport:
    """One cloud, as the spec's loader, validation, costs, the program and the command line see it."""

    cloud: Cloud
    creates_cluster: bool = True
    """False: the platform uses an existing cluster, and the spec must not ask for what only a
    cloud creates.
    """
    endpoints: tuple[str, ...] = ("public", "private")
    """What `kubernetes.access.endpoint` may be; the first is the default without ranges."""
    hub: HubId | None = None
    """The network that a platform can be connected to; None if it cannot."""
    existing_network: NetworkIds | None = None
    """The existing network that a platform can be built in; None if it cannot."""
    identities: IdentityIds | None = None
    """The identities that a platform creates, or uses if they exist; None if it has none."""
    extra: str
    """The extra of this package that installs the SDK."""
    modules: tuple[str, ...]
    """Python modules that `build` imports; `doctor` checks for them."""
    tools: tuple[str, ...] = ()
    """Command-line tools that the cluster's kubeconfig calls to log in."""
    registry_login: RegistryLogin | None = None
    """How to log in to the cloud's image registries; None if it has none."""
    packages: tuple[str, ...] = ()
    """Pulumi packages of this cloud; their settings in a stack file belong to it."""
    provider_settings: tuple[tuple[str, str], ...] = ()
    """Provider settings that must equal a field of the spec: key and field."""
    check_settings: SettingsCheck = field(default=lambda _spec, _config: iter(()))
    """Further checks of the stack's provider settings."""
    settings_schema: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """JSON Schema of provider settings that are not in `provider_settings`."""
    region_example: str = ""
    account: AccountId | None = None
    capacities: tuple[Capacity, ...] = (Capacity.ON_DEMAND,)
    """Capacity that the cloud sells."""
    pool_kinds: tuple[str, ...] = ("nodes",)
    reservations: Mapping[str, ReservationId] = field(default_factory=lambda: {"nodes": ReservationId()})
    """By kind of pool."""
    group_zones: Callable[[PlatformSpec, NodeGroup], tuple[str, ...]] = field(default=lambda _s, _g: ())
    """The zones of a node group that is created once per zone; empty = it is one group over its zones."""
    allocatable: Callable[[Machine], Allocatable] = field(default=lambda _machine: Allocatable())
    """What pods can request on an empty node; unknown for nodes of an existing cluster."""
    topology_levels: Callable[[Machine], tuple[str, ...]] = field(default=lambda _machine: ())
    """Labels that the cloud sets on nodes of this machine, from the widest part of its network to the
    closest; empty = it sets none.
    """
    unpriced_is_unsold: bool = False
    """True: the cloud lists a price for everything it sells."""
    spot_is_capped: bool = False
    """True: spot nodes never cost more than on-demand ones."""
    pool_skew: int = 0
    """How many minor versions a node pool may be older than the control plane; 0 = pools follow it."""
    encrypting_machines: str = ""
    """Pattern of the machines between which the cloud encrypts traffic; empty = none."""
    drain_minutes: int = 0
    """How long an upgrade waits for the pods of a node: their budgets and their grace period; 0 = unknown."""
    fast_image_pull: bool = False
    """Whether pools can pull and unpack layers in parallel."""
    image_release: str = ""
    """Pattern of a release of the node image that a pool can be pinned to; empty = the cloud has none."""
    rules: tuple[Rule, ...] = ()
    """Validation rules that only this cloud has."""
    notices: tuple[Rule, ...] = ()
    """What only this cloud warns about."""
    extra_pools: Callable[[PlatformSpec], tuple[ExtraPool, ...]] = field(default=lambda _spec: ())
    standing_costs: Callable[[PlatformSpec], Iterator[StandingCost]] = field(default=lambda _spec: iter(()))
    node_disk: Callable[[Machine, int | None, bool], Iterator[StandingCost]] = field(
        default=lambda _machine, _gib, _fast: iter(())
    )
    """What the root disk of one node is billed as, by its machine, size in GiB (None: the system pool's) and
    whether images are pulled in parallel.
    """

    def endpoint(self, spec: PlatformSpec) -> str:
        """Return how the API server of a platform is reached: public, dns or private."""
        return spec.kubernetes.access.endpoint_or(self.endpoints[0])

    def builder(self) -> Builder:
        """Return the function that builds a platform on this cloud.

        Raises:
            MissingToolError: the cloud's SDK is not installed.
        """
        try:
            build: Builder = import_module(f"trainfleet.infra.{self.cloud}.build").build
        except ModuleNotFoundError as missing:
            if not (missing.name or "").startswith("pulumi"):
                raise
            from trainfleet.console import install_hint

            raise MissingToolError(
                f"{missing.name} is not installed", [Problem("", "", install_hint(self.extra))]
            ) from missing
        return build


@cache
def support(cloud: Cloud) -> CloudSupport:
    """Return the support of a cloud: `SUPPORT` of its support.py."""
    found: CloudSupport = import_module(f"trainfleet.infra.{cloud}.support").SUPPORT
    return found


def all_supports() -> tuple[CloudSupport, ...]:
    """The support of every cloud, in the registry's order."""
    return tuple(map(support, Cloud))
