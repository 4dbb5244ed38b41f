"""Lists every object on a cluster, kind by kind. A rehearsal compares the list before and after."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainfleet.rehearsal.on_cluster.api import MANAGER, Api, ApiError, Document, Kind
from trainfleet.rehearsal.on_cluster.applier import AppliedObject, managers

PASSING = frozenset({"events", "leases"})
"""Kinds that come and go by themselves."""


@dataclass(frozen=True)
class Inventory:
    """Paths of all objects with their uids."""

    objects: dict[str, str] = field(default_factory=dict)
    ours: tuple[AppliedObject, ...] = ()
    """Those with our field manager."""

    def news(self, before: Inventory) -> list[str]:
        """Paths that did not exist before, or are another object now."""
        return sorted(path for path, uid in self.objects.items() if before.objects.get(path) != uid)

    def lost(self, before: Inventory) -> list[str]:
        """Paths that are no longer there."""
        return sorted(set(before.objects) - set(self.objects))


def inventory(api: Api) -> Inventory:
    """List everything that may be listed."""
    objects: dict[str, str] = {}
    ours: list[AppliedObject] = []
    for kind in api.kinds():
        if kind.plural in PASSING:
            continue
        for each in _listed(api, kind):
            metadata = each["metadata"]
            path = kind.path(metadata.get("namespace", ""), metadata["name"])
            objects[path] = metadata.get("uid", "")
            if MANAGER in managers(each):
                place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
                ours.append(
                    AppliedObject(path, metadata.get("uid", ""), f"{kind.kind} {place}{metadata['name']}")
                )
    api.warnings.clear()  # of old kinds, which only a list of everything asks for
    return Inventory(objects, tuple(ours))


def _listed(api: Api, kind: Kind) -> list[Document]:
    try:
        return api.listed(kind)
    except ApiError as error:
        if error.status in (403, 404, 405):  # not ours to see, or its definition went just now
            return []
        raise


def leftover(before: Inventory, after: Inventory, namespaces: set[str], kinds: set[str]) -> list[str]:
    """What a rehearsal left: what has our name, and what is new in its namespaces or of its kinds."""
    named = {made.path for made in after.ours}
    new = after.news(before)
    return sorted(
        path
        for path in {*named, *new}
        if path in named
        or any(f"/namespaces/{name}/" in path or path.endswith(f"/namespaces/{name}") for name in namespaces)
        or _kind(path) in kinds
    )


def _kind(path: str) -> str:
    """`rayjobs.ray.io` of `/apis/ray.io/v1/namespaces/x/rayjobs/y`: the name of its definition."""
    parts = path.strip("/").split("/")
    return f"{parts[-2]}.{parts[1]}" if parts[0] == "apis" else ""
