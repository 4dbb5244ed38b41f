"""The bootstrap stacks of this project as specs, and changes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trainfleet.infra.bootstrap.schema import BootstrapSpec, parse_bootstrap

ROOT = Path(__file__).resolve().parents[2]
STACKS = ROOT / "stacks" / "bootstrap"
CLOUDS = ("aws", "gcp", "azure")


def document(cloud: str) -> dict[str, Any]:
    """The spec in a stack file, as written."""
    text = (STACKS / f"Pulumi.bootstrap-{cloud}.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)["config"]["trainfleet:bootstrap"]
    return found


def spec_of(cloud: str, **changes: Any) -> BootstrapSpec:
    """The spec of a stack file, with some keys changed."""
    return parse_bootstrap({**document(cloud), **changes})
