"""Specs for the tests of this folder: a small Azure platform, changed where a test wants it."""

from __future__ import annotations

from typing import Any

from trainfleet.infra.catalog.machines import Machine, catalogue
from trainfleet.infra.spec.load import parse_spec
from trainfleet.infra.spec.schema import PlatformSpec

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
ADMINS = "aaaaaaaa-0000-4000-8000-000000000001"
LAUNCHERS = "aaaaaaaa-0000-4000-8000-000000000002"
RESERVATION = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/capacity/providers/Microsoft.Compute/capacityReservationGroups/a100"
SMALL: dict[str, Any] = {
    "name": "lab",
    "cloud": "azure",
    "region": "eastus",
    "account": SUBSCRIPTION,
    "owner": "ml@example.com",
    "network": {"cidr": "10.60.0.0/16", "zones": 2},
    "kubernetes": {"admins": [ADMINS], "access": {"public_ranges": ["203.0.113.0/24"]}},
}


def platform(**changes: Any) -> PlatformSpec:
    """The small platform with some top-level keys changed, and some of `kubernetes`."""
    kubernetes = {**SMALL["kubernetes"], **changes.pop("kubernetes", {})}
    return parse_spec({**SMALL, **changes, "kubernetes": kubernetes})


def machine(instance_type: str) -> Machine:
    (found,) = [each for each in catalogue() if each.instance_type == instance_type]
    return found
