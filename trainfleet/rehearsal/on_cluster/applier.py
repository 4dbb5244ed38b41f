"""Applies objects to a real cluster. Objects that it did not create are never changed or deleted.

An existing object with identical content is shared: it is used and left as it is.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from trainfleet.errors import InputError
from trainfleet.rehearsal.on_cluster.api import MANAGER, Api, ApiError, Document, UnknownKindError
from trainfleet.rehearsal.on_cluster.objects import shown
from trainfleet.rehearsal.simulation.state import RefusedError

GONE_S = 180.0
ESTABLISHED_S = 60.0
CLEAN_UP = "`trainfleet rehearse STACK --on-cluster NAME --clean-up` removes it"


@dataclass(frozen=True)
class AppliedObject:
    """An object that this rehearsal created on the cluster."""

    path: str
    uid: str
    shown: str


class Applier:
    """The objects of one rehearsal on one cluster.

    With `shares_namespaces`, an existing namespace is used with its own labels and kept. Without it, an
    existing namespace must have the stack's labels. On a cluster with other users, this keeps the stack's
    quotas and network policies away from their pods.
    """

    def __init__(self, api: Api, *, shares_namespaces: bool = False) -> None:
        self.api = api
        self.shares_namespaces = shares_namespaces
        self.namespaces: dict[str, str] = {}
        """Existing namespaces that are used with their own labels: their owners, by name."""
        self.made: dict[str, AppliedObject] = {}
        """Created objects by path, in creation order."""
        self.shared: dict[str, str] = {}
        """Existing objects with identical content: their owners, by path."""
        self._lock = threading.RLock()
        self._closed = False

    def make(self, document: Document) -> Document:
        """Create an object. For a CustomResourceDefinition, wait until it is established.

        Raises:
            RefusedError: the API server rejects the object, or it exists and has another owner.
        """
        with self._lock:
            if self._closed:
                raise RefusedError("the rehearsal has ended")
            path = _asked(lambda: self.api.path_of(document))
            there = _asked(lambda: self.api.get(path))
            if there is not None and path not in self.made:
                return self._shared(path, document, there)
            live: Document = _asked(lambda: self.api.apply(document))
            self.made[path] = AppliedObject(path, live["metadata"]["uid"], shown(live))
        if document["kind"] == "CustomResourceDefinition":
            self._established(path, document)
        return live

    def _shared(self, path: str, document: Document, there: Document) -> Document:
        owners = ", ".join(sorted(managers(there))) or "somebody"
        if MANAGER in managers(there):
            raise RefusedError(
                f"{shown(there)} already exists: left by a rehearsal, or part of one that is running"
                f" ({CLEAN_UP})"
            )
        if self.shares_namespaces and document["kind"] == "Namespace":
            self.shared[path] = self.namespaces[document["metadata"]["name"]] = owners
            return there
        try:
            after = self.api.apply(document, dry_run=True)
        except ApiError as error:
            raise RefusedError(
                f"{shown(there)} already exists, created by {owners}, and is left unchanged: {error.message}"
            ) from error
        if _content(after) != _content(there):
            raise RefusedError(
                f"{shown(there)} already exists, created by {owners}, with other content: left unchanged"
            )
        self.shared[path] = owners
        return there

    def _established(self, path: str, document: Document) -> None:
        spec = document["spec"]
        version = f"{spec['group']}/{next(row['name'] for row in spec['versions'] if row.get('storage'))}"

        def done() -> bool:
            found = self.api.get(path) or {}
            conditions = {
                row["type"]: row["status"] for row in (found.get("status") or {}).get("conditions") or ()
            }
            if conditions.get("Established") != "True" or conditions.get("NamesAccepted") != "True":
                return False
            try:
                listing = self.api.kind(version, spec["names"]["kind"])
                self.api.listed(listing)
            except (UnknownKindError, ApiError):
                return False
            return True

        if not self.api.wait(done, ESTABLISHED_S):
            raise RefusedError(f"{shown(document)} did not become established in {ESTABLISHED_S:.0f} s")

    def change(self, document: Document) -> Document:
        """Update an object of this rehearsal.

        Raises:
            RefusedError: the API server rejects it, it has another owner, or another manager changed the same
            field.
        """
        with self._lock:
            path = _asked(lambda: self.api.path_of(document))
            if path in self.shared:
                raise RefusedError(f"{shown(document)} was made by {self.shared[path]} and is left alone")
            if path not in self.made:
                raise RefusedError(f"{shown(document)} was not made by this rehearsal")
            live: Document = _asked(lambda: self.api.apply(document))
            return live

    def remove(self, path: str) -> None:
        """Start to delete an object if this rehearsal created it; `wait_gone` waits until it is deleted."""
        with self._lock:
            self.shared.pop(path, None)
            if (ours := self.made.get(path)) is not None:
                _asked(lambda: self.api.delete(path, ours.uid))

    def wait_gone(self, path: str, limit: float = GONE_S) -> None:
        """Wait until an object of this rehearsal is deleted.

        Raises:
            RefusedError: it still exists after `limit` seconds; names the finalizers or conditions.
        """
        if (ours := self.made.get(path)) is None:
            return
        if not _asked(lambda: self.api.gone(path, limit, ours.uid)):
            raise RefusedError(f"{ours.shown} did not go in {limit:.0f} s{_waits_for(self.api.get(path))}")
        with self._lock:
            self.made.pop(path, None)

    def close(self) -> None:
        """Reject further creates; a create in progress finishes first."""
        with self._lock:
            self._closed = True

    def clear(self, limit: float = GONE_S) -> list[str]:
        """Delete the remaining objects, newest first; return what could not be deleted."""
        left = [*reversed(self.made.values())]
        return remove_all(self.api, left, limit)


def remove_all(api: Api, left: list[AppliedObject], limit: float = GONE_S) -> list[str]:
    """Delete objects and wait until they are gone; return what could not be deleted.

    CustomResourceDefinitions go last, because the objects of a kind without one cannot be read.
    """
    refused = []
    for some in (
        [each for each in left if not _is_definition(each)],
        [each for each in left if _is_definition(each)],
    ):
        for each in some:
            try:
                api.delete(each.path, each.uid)
            except ApiError as error:
                refused.append(f"{each.shown}: {error.message}")
        for each in some:
            try:
                if not api.gone(each.path, limit, each.uid):
                    refused.append(
                        f"{each.shown} did not go in {limit:.0f} s{_waits_for(api.get(each.path))}"
                    )
            except ApiError as error:
                refused.append(f"{each.shown}: {error.message}")
    return refused


def _is_definition(made: AppliedObject) -> bool:
    return "/customresourcedefinitions/" in made.path


def managers(document: Document) -> set[str]:
    """Return the field managers of an object, except those that only report status."""
    return {
        row["manager"]
        for row in document["metadata"].get("managedFields", ())
        if row.get("subresource") != "status"
    }


def _content(document: Document) -> Document:
    """Return an object without the metadata that the API server maintains."""
    kept = {
        key: value
        for key, value in document["metadata"].items()
        if key not in ("managedFields", "resourceVersion", "generation")
    }
    return {**document, "metadata": kept}


def _waits_for(document: Document | None) -> str:
    metadata = (document or {}).get("metadata") or {}
    waiting = [
        *map(str, metadata.get("finalizers") or ()),
        *(
            row["message"]
            for row in ((document or {}).get("status") or {}).get("conditions") or ()
            if row.get("status") == "True" and row.get("message")
        ),
    ]
    return f": it waits for {'; '.join(waiting)}" if waiting else ""


def _asked(ask: Any) -> Any:
    try:
        return ask()
    except ApiError as error:
        raise RefusedError(
            f"rejected by the API server: {error.message}"
            if error.status
            else f"the API server cannot be reached: {error.message}"
        ) from error
    except (UnknownKindError, InputError) as error:
        raise RefusedError(error.summary) from error
