"""The tags of every resource: its owner and its platform.

They are set on each resource and not as the provider's defaults, because policies and reviews read a
resource's own inputs.
"""

from __future__ import annotations

import re

import pulumi

from trainfleet.infra.spec.named import Named

PLATFORM_TAG = "trainfleet:platform"
REQUIRED_TAGS = (PLATFORM_TAG, "trainfleet:environment", "trainfleet:owner", "trainfleet:stack")


def tags(spec: Named, name: str) -> dict[str, str]:
    """All tags of the resource `name`. The platform's own tags override those of the spec."""
    return {
        **spec.tags,
        "Name": name,
        PLATFORM_TAG: spec.name,
        "trainfleet:environment": spec.environment,
        "trainfleet:owner": spec.owner,
        "trainfleet:stack": pulumi.get_stack(),
    }


def labels(spec: Named, name: str) -> dict[str, str]:
    """The same as Google Cloud labels: at most 63 lower case letters, digits, `-` and `_`."""
    return {
        _label(key.replace("trainfleet:", "trainfleet-")): _label(value)
        for key, value in tags(spec, name).items()
    }


def _label(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", text.lower().replace("@", "_at_").replace(".", "_"))[:63]
