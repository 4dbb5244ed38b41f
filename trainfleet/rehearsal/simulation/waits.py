"""How long a program waits after it assigns a role: a cloud accepts the assignment at once, and acts on it
minutes later.

A rehearsal does not wait. Programs write how long they would (`note_waits` in engine/program.py), and the
cloud counts each wait as time that passed for everything that exists by then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.pulumi_values import plain

SLEEP = "time:index/sleep:Sleep"
"""The resource of the provider `time` that waits when it is created."""
NOW = "2100-01-01T00:00:00+00:00"
"""The time of every assignment: always the same, and never past, so that a program waits by it in full."""
ASSIGNED_AT = {"azure-native:authorization:RoleAssignment": "createdOn"}
"""The output of a role that tells when it was assigned."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass
class Waits:
    """The waits that programs write into a file, one a line in seconds."""

    file: Path
    _read: int = 0

    def assigned(self, token: str) -> dict[str, Any]:
        """Return the outputs of a new resource of this type that tell when it was made."""
        return {ASSIGNED_AT[token]: NOW} if token in ASSIGNED_AT else {}

    def before(self, record: CloudObject, there: Iterable[CloudObject]) -> None:
        """Let the time pass that programs waited until they created a resource, which is new then."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        _pass(max(map(float, lines[self._read :]), default=0.0), there)
        self._read = len(lines)
        record.age = 0.0

    def after(self, record: CloudObject, there: Iterable[CloudObject]) -> None:
        """Let the time pass that the creation of a resource takes, if it is a wait."""
        if record.token == SLEEP:
            _pass(seconds(str(plain(record.inputs).get("createDuration", ""))), there)


def seconds(duration: str) -> float:
    """Return the seconds of a duration such as `90s` or `1h30m`."""
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)(ms|s|m|h)", duration))


def _pass(waited: float, there: Iterable[CloudObject]) -> None:
    # Waits are often parallel: the longest counts, not their sum.
    for record in there:
        if record.age is not None:
            record.age = max(record.age, waited)
