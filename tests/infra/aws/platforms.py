"""Specs for the tests of this folder: a small AWS platform, changed where a test wants it."""

from __future__ import annotations

from typing import Any

from trainfleet.infra.catalog.machines import Machine, catalogue
from trainfleet.infra.spec.load import parse_spec
from trainfleet.infra.spec.schema import PlatformSpec

SMALL: dict[str, Any] = {
    "name": "lab",
    "cloud": "aws",
    "region": "us-east-2",
    "owner": "ml@example.com",
    "network": {"cidr": "10.50.0.0/16", "zones": 2},
    "kubernetes": {"access": {"public_ranges": ["203.0.113.0/24"]}},
}


def platform(**changes: Any) -> PlatformSpec:
    """The small platform with some top-level keys changed, and some of `kubernetes`."""
    kubernetes = {**SMALL["kubernetes"], **changes.pop("kubernetes", {})}
    return parse_spec({**SMALL, **changes, "kubernetes": kubernetes})


def machine(instance_type: str) -> Machine:
    (found,) = [each for each in catalogue() if each.instance_type == instance_type]
    return found
