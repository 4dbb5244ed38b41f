"""The tags every resource carries: whose it is and which platform it belongs to. Used by every room of every
cloud.

Written on each resource and not as the provider's defaults, because policies and reviewers read a resource's
own inputs.
The spec's own tags come first, so that no team tag can hide the ones that budgets and policies look for.
"""

from __future__ import annotations

import re

import pulumi

from trainfleet.infra.spec.schema import PlatformSpec

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


def labels(spec: PlatformSpec, name: str) -> dict[str, str]:
    """The same as Google Cloud's labels, which know lower case letters, digits, `-` and `_` only, and 63 of
    them.
    """
    return {
        _label(key.replace("trainfleet:", "trainfleet-")): _label(value)
        for key, value in tags(spec, name).items()
    }


def _label(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", text.lower().replace("@", "_at_").replace(".", "_"))[:63]
