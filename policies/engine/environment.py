"""What the pack knows of the stack it checks: the platform's environment, out of the setting
`trainfleet:platform`.
"""

from __future__ import annotations

import json

from trainfleet.policies.engine.rule import ENVIRONMENTS

DEFAULT = "dev"
"""What a platform spec that says nothing is (trainfleet.infra.spec.schema)."""


def environment_of(platform: str | None) -> str | None:
    """The environment in a `trainfleet:platform` setting (JSON text); None where the program is no platform,
    or says a word nobody knows.
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
