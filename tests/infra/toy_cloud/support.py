"""The toy cloud as the rest of the code sees it."""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.infra.catalog.cost import nat_costs
from trainfleet.infra.cloud_support import AccountId, CloudSupport, StandingCost
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.schema import Capacity, PlatformSpec
from trainfleet.infra.validation.finding import Finding


def toy_region_is_known(spec: PlatformSpec) -> Iterator[Finding]:
    """There is one region."""
    if spec.region and spec.region != "playroom":
        yield Finding(("region",), f"`{spec.region}` is not a region of toy", "playroom", (("cloud",),))


def standing_costs(spec: PlatformSpec) -> Iterator[StandingCost]:
    yield StandingCost("control-plane", 1)
    yield from nat_costs(spec, 1)


SUPPORT = CloudSupport(
    cloud=Cloud("toy"),
    extra="pulumi",
    modules=("pulumi", "pulumi_kubernetes"),
    packages=("toy",),
    provider_settings=(("toy:region", "region"),),
    region_example="playroom",
    account=AccountId("shelf", r"shelf-\d+", "for example shelf-1"),
    capacities=(Capacity.ON_DEMAND, Capacity.SPOT),
    rules=(toy_region_is_known,),
    standing_costs=standing_costs,
)
