"""The tags every resource carries: whose it is and which platform it belongs to. Used by every room of every cloud.

Written on each resource and not as the provider's defaults, because policies and reviewers read a resource's own inputs.
The spec's own tags come first, so that no team tag can hide the ones that budgets and policies look for.
"""

from __future__ import annotations

import pulumi

from infra.spec import PlatformSpec

PLATFORM_TAG = "trainfleet:platform"
REQUIRED_TAGS = (PLATFORM_TAG, "trainfleet:environment", "trainfleet:owner", "trainfleet:stack")


def tags(spec: PlatformSpec, name: str) -> dict[str, str]:
    """All tags of the resource called `name`."""
    return {
        **spec.tags,
        "Name": name,
        PLATFORM_TAG: spec.name,
        "trainfleet:environment": spec.environment,
        "trainfleet:owner": spec.owner,
        "trainfleet:stack": pulumi.get_stack(),
    }
