"""Changes made outside Pulumi: what a refresh found in the cloud that the state did not have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainfleet.rehearsal.diff.change import Property
from trainfleet.rehearsal.diff.compare import differences
from trainfleet.rehearsal.diff.model import Drift


def drift_of(events: Iterable[Mapping[str, Any]]) -> list[Drift]:
    """Return the drift in the events of `pulumi refresh`, or of a command with `--refresh`."""
    found = [each for metadata in read_back(events) if (each := _drift(metadata)) is not None]
    return sorted(found, key=lambda each: (not each.gone, each.token, each.name))


def read_back(events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the metadata of each resource as a refresh read it: `old` is the state, `new` the cloud.

    A refresh announces each resource (`resourcePreEvent` with the operation `refresh`) and then reports what
    it read (`resOutputsEvent`), as `same`, `update` or `delete`, or as `refresh` if another command runs it.
    A later operation on the same resource is not drift.
    """
    waiting: set[tuple[str, str]] = set()
    for event in events:
        if pre := event.get("resourcePreEvent"):
            if pre["metadata"]["op"] == "refresh":
                waiting.add(_key(pre["metadata"]))
        elif done := event.get("resOutputsEvent"):
            metadata = done["metadata"]
            if _key(metadata) in waiting:
                waiting.discard(_key(metadata))
                yield metadata


def _key(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return what tells a resource from the old one that its replacement left behind under the same URN."""
    return metadata["urn"], str((metadata.get("old") or {}).get("id", ""))


def _drift(metadata: Mapping[str, Any]) -> Drift | None:
    old, new, op = metadata.get("old") or {}, metadata.get("new"), metadata["op"]
    urn, token = metadata["urn"], metadata["type"]
    name = urn.rsplit("::", 1)[-1]
    if not old.get("custom") or token.startswith("pulumi:"):
        return None
    if op == "delete" or not new:
        # One that is waiting to be deleted was expected to go.
        return None if old.get("delete") else Drift(urn, token, name, gone=True)
    if op == "same":
        return None
    changed = tuple(
        Property(path, before, after)
        for path, before, after in differences(token, old.get("outputs") or {}, new.get("outputs") or {})
    )
    return Drift(urn, token, name, gone=False, properties=changed) if changed or op == "update" else None
