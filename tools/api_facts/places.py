"""Where a collected file belongs: modules that Trainfleet's own components use ship with Trainfleet, the
others with the optional package in `packages/api-facts`.
"""

from __future__ import annotations

import re
from pathlib import Path

from trainfleet.rehearsal.simulation.facts import FACTS

ROOT = Path(__file__).resolve().parent.parent.parent
OPTIONAL = ROOT / "packages" / "api-facts" / "trainfleet_api_facts"


def used_modules(package: str) -> set[str]:
    """The SDK modules of a package (`aws`, `gcp`) whose resources `infra/` creates."""
    name = re.compile(rf"\b{package}\.([a-z0-9_]+)\.[A-Z]")
    return {
        module
        for file in (ROOT / "infra").rglob("*.py")
        for module in name.findall(file.read_text(encoding="utf-8"))
    }


def folder_of(package: str, module: str) -> Path:
    """The folder of a module's file."""
    return (FACTS if module in used_modules(package) else OPTIONAL) / package
