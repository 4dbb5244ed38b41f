"""Who launches a run, as run.json and `trainfleet runs cost --by owner` name them."""

from __future__ import annotations

import getpass
from collections.abc import Mapping

OWNER = "TRAINFLEET_OWNER"
"""Who a run belongs to, such as a person, team or project; by default the user who launches it."""


def owner_of(env: Mapping[str, str]) -> str:
    """The owner of the runs that are launched with this environment; empty if the user has no name."""
    if name := env.get(OWNER, "").strip():
        return name
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user id has no entry
        return ""
