"""One resource as it exists in a simulated cloud."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class CloudObject:
    """An existing resource: its URN, its inputs and its outputs, with secrets wrapped."""

    urn: str
    token: str
    id: str
    unique: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    place: str = ""
    """The place in which the id is unique, such as a Kubernetes cluster; empty if ids are global."""
    version: str = ""
    """Kubernetes version of its nodes, where the cloud chose it when it created the resource."""
    age: float | None = None
    """Seconds that the program waited since it created the resource; None: the resource is old."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The unique key of the resource in a `Cloud`."""
        return self.token, self.id, self.place
