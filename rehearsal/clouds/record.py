"""What a simulated cloud knows of one thing that exists there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Record:
    """A thing that exists: the resource it belongs to, what was asked for, and what it is like (wire values)."""

    urn: str
    token: str
    id: str
    unique: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
