"""Specs for the tests of this folder: a small platform on Google Cloud, changed where a test wants it."""

from __future__ import annotations

from typing import Any

from trainfleet.infra.catalog.machines import Machine, catalogue
from trainfleet.infra.spec.load import parse_spec
from trainfleet.infra.spec.schema import PlatformSpec

SMALL: dict[str, Any] = {
    "name": "lab",
    "cloud": "gcp",
    "region": "us-central1",
    "account": "my-project-123456",
    "owner": "ml@example.com",
    "network": {"cidr": "10.50.0.0/16", "zones": 2},
}


def platform(**changes: Any) -> PlatformSpec:
    """The small platform with some top-level keys changed."""
    return parse_spec({**SMALL, **changes})


def unchecked(**changes: Any) -> PlatformSpec:
    """The same, unseen by the rules."""
    return PlatformSpec.model_validate({**SMALL, **changes})


def machine(instance_type: str) -> Machine:
    (found,) = [each for each in catalogue() if each.instance_type == instance_type]
    return found
