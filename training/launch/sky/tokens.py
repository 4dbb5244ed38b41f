"""The tokens of launchers as the commands need them; light, because `--help` imports it."""

from __future__ import annotations

from trainfleet.infra.outputs.launcher_token import HOURS, LEAST_HOURS, MOST_HOURS, read_token

__all__ = ["HOURS", "LEAST_HOURS", "MOST_HOURS", "read_token"]
