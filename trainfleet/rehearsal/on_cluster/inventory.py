"""Lists all objects on a cluster, so that a rehearsal can compare the cluster before and after."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainfleet.rehearsal.on_cluster.api import MANAGER, Api, ApiError, Document, Kind
from trainfleet.rehearsal.on_cluster.applier import AppliedObject, managers

PASSING = frozenset({"events", "leases"})
"""Kinds whose objects come and go on their own."""


@dataclass(frozen=True)
class Inventory:
    """The UIDs of all objects, by path."""

    objects: dict[str, str] = field(default_factory=dict)
    ours: tuple[AppliedObject, ...] = ()
    """Objects with the rehearsal's field manager."""

    def news(self, before: Inventory) -> list[str]:
        """Return the paths that are new or have a different UID."""
        return sorted(path for path, uid in self.objects.items() if before.objects.get(path) != uid)

    def lost(self, before: Inventory) -> list[str]:
        """Return the paths that no longer exist."""
        return sorted(set(before.objects) - set(self.objects))


def inventory(api: Api) -> Inventory:
    """List all objects that the caller may list."""
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
    api.warnings.clear()  # deprecation warnings of kinds that only a complete listing requests
    return Inventory(objects, tuple(ours))


def _listed(api: Api, kind: Kind) -> list[Document]:
    try:
        return api.listed(kind)
    except ApiError as error:
        if error.status in (403, 404, 405):  # forbidden, not listable, or its definition was just deleted
            return []
        raise


def leftover(before: Inventory, after: Inventory, namespaces: set[str], kinds: set[str]) -> list[str]:
    """Return leftovers: objects with our field manager, and new ones in our namespaces or of our kinds."""
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
    """Return the definition name of a path: `rayjobs.ray.io` for `/apis/ray.io/v1/namespaces/x/rayjobs/y`."""
    parts = path.strip("/").split("/")
    return f"{parts[-2]}.{parts[1]}" if parts[0] == "apis" else ""
