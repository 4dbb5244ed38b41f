"""The state of a simulated cloud: what exists, which operations ran, and which fault is active.

One `Cloud` per rehearsal is shared by its providers; every method is thread-safe. Ids and generated names
derive from the URN, so that two rehearsals of one program create identical resources.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.files import write_whole
from trainfleet.rehearsal.accepted import Accepted
from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.deployed import Deployed
from trainfleet.rehearsal.simulation.fault_injection import FailOnce, FaultInjector, InjectedFaultError
from trainfleet.rehearsal.simulation.pulumi_values import digested
from trainfleet.rehearsal.simulation.reachability import why_unreachable
from trainfleet.rehearsal.simulation.refusal import (
    AlreadyExistsError,
    Refusal,
    RefusedError,
    RejectedError,
)
from trainfleet.rehearsal.simulation.schema import is_plugin_component
from trainfleet.rehearsal.simulation.stateful_rules import cloud_refuses, name_refused, version_of_nodes
from trainfleet.rehearsal.simulation.values import digest
from trainfleet.rehearsal.simulation.waits import Waits


@dataclass(frozen=True)
class Operation:
    """One operation that the simulated cloud performed or refused."""

    verb: str
    urn: str
    token: str
    id: str
    of: str = ""
    """The verb that failed or was refused, if `verb` is `fail` or `refuse`."""


@dataclass
class Cloud:
    """The simulated cloud of one rehearsal."""

    records: dict[tuple[str, str, str], CloudObject] = field(default_factory=dict)
    """The resources that exist, by type, id and place."""
    deleted: list[CloudObject] = field(default_factory=list)
    """The resources that existed: some clouds keep their names."""
    operations: list[Operation] = field(default_factory=list)
    mistakes: dict[str, list[Mistake]] = field(default_factory=dict)
    """The mistakes that Check found, by URN. The rehearsal prints them itself instead of the engine's output.
    """
    missing: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    """The rows of rehearsal.toml that would answer what the program asked, and why it is asked."""
    accepted: Accepted = field(default_factory=Accepted)
    """What the project accepts and answers itself."""
    warnings: dict[str, None] = field(default_factory=dict)
    """What the report has to say without failing, each once."""
    components: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The components of plugins that exist, by URN: their outputs, if they come from a state."""
    providers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The settings of the explicit providers in a state, by URN."""
    known: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """What is known of resources that exist outside, by type and id."""
    external: dict[tuple[str, str, str], CloudObject] = field(default_factory=dict)
    """Resources that the program reads by id and that nothing in this rehearsal created."""
    injector: FaultInjector = field(default_factory=FaultInjector)
    quotas: dict[str, int] = field(default_factory=dict)
    """How many resources of a type may exist, where it differs from stateful_rules/*.toml."""
    applied_from: str = ""
    """Where the program is applied from, one of reachability.PLACES; empty: not checked."""
    leave: bool = False
    """Whether to keep resources that were created outside this process when the rehearsal ends."""
    other_sdk: Callable[[str, list[Mistake]], list[Mistake]] | None = None
    """Drops the mistakes of a type that are due to a program's SDK being another version than the installed
    one; None: they are the same.
    """
    deployed: Deployed | None = None
    """What is known of a real deployment, whose resources this cloud remembers; None: nothing is real."""
    waits: Waits | None = None
    """How long programs wait; None: every role is in effect at once."""
    _made: dict[str, int] = field(default_factory=dict, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def fail_create(self, urn: str, message: str) -> None:
        """Make the next create of `urn` fail."""
        self.injector = FailOnce("create", only=[urn], message=message)

    def seed(self, urn: str) -> str:
        """Return the hexadecimal digits for a resource's generated values.

        They change after each create, because a replacement coexists with the old resource.
        """
        with self._lock:
            return digest(urn, str(self._made.get(urn, 0)))

    def create(self, record: CloudObject, timeout: float = 0.0) -> None:
        """Add a resource. `timeout` is the timeout that the program sets for it, in seconds.

        Raises:
            InjectedFaultError: the active fault makes this create fail.
            AlreadyExistsError: the physical name is taken.
            RejectedError: a stateful rule of the cloud forbids it.
        """
        with self._lock:
            if self.waits:
                self.waits.before(record, self.records.values())
            self._inject("create", record, timeout)
            taken = next(
                (
                    other
                    for other in self.records.values()
                    if record.unique and (other.unique, other.place) == (record.unique, record.place)
                ),
                None,
            )
            if taken is not None:
                owner = f" (made by {taken.urn.rsplit('::', 1)[-1]})"
                what = (
                    f"{record.unique.split('|', 1)[1]} already exists{owner}: physical names must be unique"
                )
                raise AlreadyExistsError(Refusal(what, f"names of {record.token} are unique"))
            self._check_rules("create", record)
            self.perform("create", record)
            record.version = version_of_nodes(record, self.records.values())
            if self.waits:
                self.waits.after(record, self.records.values())
            self.records[record.key] = record
            self._made[record.urn] = self._made.get(record.urn, 0) + 1
            self.operations.append(Operation("create", record.urn, record.token, record.id))
            self.injector.after_create(record, timeout)

    def update(  # noqa: PLR0917 - the order of the protocol's fields
        self,
        token: str,
        resource_id: str,
        urn: str,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        place: str = "",
    ) -> None:
        """Replace the inputs and outputs of a resource.

        Args:
            token: its type.
            resource_id: its ID in the simulated cloud.
            urn: its URN, which fault injection selects by.
            inputs: its new inputs.
            outputs: its new outputs.
            place: its region or resource group; empty if it has none.

        Raises:
            InjectedFaultError: the active fault makes this update fail.
            KeyError: the resource does not exist.
            RejectedError: a stateful rule of the cloud forbids it.
        """
        with self._lock:
            record = self.records.get((token, resource_id, place))
            if record is None:
                raise KeyError(resource_id)
            changed = CloudObject(
                urn, token, resource_id, record.unique, inputs, outputs, place, record.version, record.age
            )
            self._inject("update", changed)
            self._check_rules("update", changed)
            self.perform("update", changed)
            record.inputs, record.outputs, record.urn = inputs, outputs, urn
            self.operations.append(Operation("update", urn, token, resource_id))

    def delete(self, token: str, resource_id: str, urn: str, place: str = "") -> None:
        """Remove a resource. As in real clouds, it is not an error if the resource is already gone.

        Raises:
            InjectedFaultError: the active fault makes this delete fail.
            RejectedError: another resource still uses it.
        """
        with self._lock:
            record = self.records.get((token, resource_id, place)) or CloudObject(
                urn, token, resource_id, "", {}, {}, place
            )
            self._inject("delete", record)
            self._check_rules("delete", record)
            self.perform("delete", record)
            if gone := self.records.pop(record.key, None):
                self.deleted.append(gone)
            self.operations.append(Operation("delete", urn, token, resource_id))

    def perform(self, verb: str, record: CloudObject) -> None:
        """Perform an operation outside this process; a cloud that is partly real overrides this.

        Raises:
            RefusedError: the real part refuses the operation.
        """

    def _check_rules(self, verb: str, record: CloudObject) -> None:
        reason = cloud_refuses(verb, record, self.records.values(), self.quotas)
        if verb == "create":
            reason = reason or name_refused(record, self.deleted)
        if reason:
            self.operations.append(Operation("refuse", record.urn, record.token, record.id, verb))
            raise RejectedError(reason)

    def check_reachable(self, kubeconfig: str) -> None:
        """Check that the API server in a kubeconfig can be reached from where the program is applied.

        Raises:
            RejectedError: it cannot.
        """
        if not self.applied_from:
            return
        with self._lock:
            reason = why_unreachable(kubeconfig, self.applied_from, self.records.values())
        if reason:
            raise RejectedError(reason)

    def _inject(self, verb: str, record: CloudObject, timeout: float = 0.0) -> None:
        try:
            self.injector.before(verb, record, timeout)
        except InjectedFaultError:
            self.operations.append(Operation("fail", record.urn, record.token, record.id, verb))
            raise

    def find(self, token: str, resource_id: str, place: str = "") -> CloudObject | None:
        """Return a copy of a resource, or None."""
        with self._lock:
            # Remembered resources have no place.
            found = self.records.get((token, resource_id, place)) or self.records.get(
                (token, resource_id, "")
            )
            return copy.deepcopy(found)

    def remember(self, resources: Iterable[dict[str, Any]]) -> None:
        """Add the resources of an engine's state that another `Cloud` created.

        They answer lookups; they do not support changes.
        """
        with self._lock:
            for resource in resources:
                if (
                    resource.get("custom")
                    and resource.get("id")
                    and not resource["type"].startswith("pulumi:")
                ):
                    inputs, outputs = resource.get("inputs") or {}, resource.get("outputs") or {}
                    record = CloudObject(
                        resource["urn"], resource["type"], resource["id"], "", inputs, outputs
                    )
                    self.records[record.key] = record
                elif resource["type"].startswith("pulumi:providers:"):
                    self.providers[resource["urn"]] = resource.get("inputs") or {}
                elif is_plugin_component(resource):
                    self.components[resource["urn"]] = resource.get("outputs") or {}

    def everything(self) -> list[CloudObject]:
        """Return all resources as they are now. Do not change their values, which are not copied: every read
        of a resource asks for all of them.
        """
        with self._lock:
            return [copy.copy(record) for record in self.records.values()]

    def of_urn(self, urn: str) -> CloudObject | None:
        """Return a copy of the cloud resource that a URN owns, or None."""
        with self._lock:
            return copy.deepcopy(
                next((record for record in self.records.values() if record.urn == urn), None)
            )

    def drift(self, urn: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the inputs and outputs of a resource without the engine's knowledge."""
        with self._lock:
            record = next(record for record in self.records.values() if record.urn == urn)
            record.inputs, record.outputs = copy.deepcopy((record.inputs, record.outputs))
            change(record.inputs)
            change(record.outputs)

    def refuse(self, urn: str, mistakes: list[Mistake]) -> None:
        """Record the mistakes that Check found."""
        with self._lock:
            self.mistakes[urn] = mistakes

    def missing_answer(self, what: str, row: dict[str, Any], reason: str = "") -> None:
        """Record that only the project can answer `what`, with the row of rehearsal.toml that would."""
        with self._lock:
            self.missing[f"{what} {json.dumps(row.get('args', {}), sort_keys=True, default=str)}"] = (
                row,
                reason,
            )

    def warn(self, urn: str, text: str) -> None:
        """Record something about a resource that the report has to say."""
        with self._lock:
            name = "::".join(urn.split("::")[-2:]).rsplit("$", 1)[-1].replace("::", " ")
            self.warnings[f"{name}: {text}"] = None

    def save(self, path: Path) -> None:
        """Write everything that exists as one JSON document, atomically, with digests in place of secrets."""
        with self._lock:
            document = [
                {**vars(record), "inputs": digested(record.inputs), "outputs": digested(record.outputs)}
                for record in self.records.values()
            ]
        write_whole(path, json.dumps(document, indent=1, sort_keys=True))


__all__ = ["AlreadyExistsError", "Cloud", "Operation", "RefusedError", "RejectedError"]
