"""What an update of a CustomResourceDefinition loses: the versions that the API server no longer serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainfleet.rehearsal.diff.data_loss import Loss
from trainfleet.rehearsal.simulation.pulumi_values import plain

_TOKEN = "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition"


def lost_versions(token: str, event: Mapping[str, Any]) -> Loss | None:
    """Return what an update event of a definition loses; None if it serves every version that it served."""
    if token != _TOKEN:
        return None
    old, new = (_served(event.get(side) or {}) for side in ("old", "new"))
    if not (gone := [version for version in old if version not in new]):
        return None
    names = ", ".join(gone)
    why = (
        f"objects can no longer be read or written as {names}; the API server refuses to remove a version"
        " while objects are stored in it"
    )
    return Loss(("access",), why, loud=True)


def _served(state: Mapping[str, Any]) -> list[str]:
    spec = plain((state.get("inputs") or {}).get("spec"))
    versions = spec.get("versions") if isinstance(spec, Mapping) else None
    return [
        str(each.get("name"))
        for each in (versions if isinstance(versions, list) else ())
        if isinstance(each, Mapping) and each.get("served", True) is True
    ]
