"""The environment of the stack, read from the setting `trainfleet:platform`."""

from __future__ import annotations

import json

from trainfleet.policies.engine.rule import ENVIRONMENTS

DEFAULT = "dev"
"""The default environment of a platform spec (trainfleet.infra.spec.schema)."""


def environment_of(platform: str | None) -> str | None:
    """Return the environment in a `trainfleet:platform` setting (JSON text).

    None if the program is not a platform or the environment is unknown.
    """
    try:
        spec = json.loads(platform or "{}")
    except ValueError:
        return None
    if not isinstance(spec, dict) or not (
        value := spec.get("environment", DEFAULT if "cloud" in spec else None)
    ):
        return None
    return value if value in ENVIRONMENTS else None
