"""What a simulated cloud knows of one thing that exists there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class CloudObject:
    """A thing that exists: the resource it belongs to, what was asked for, and what it is like (wire values)."""

    urn: str
    token: str
    id: str
    unique: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    place: str = ""
    """Where it is, if there are several places in which the same id means another thing (clusters of
    Kubernetes).
    """

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from everything else."""
        return self.token, self.id, self.place
