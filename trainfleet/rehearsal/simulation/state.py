"""What exists in a simulated cloud, what was done to it, and what shall go wrong: the part that a rehearsal
holds in hand.

One per rehearsal, shared by its providers; every method may be called from any thread. A rehearsal lets
things go wrong (`fault`), changes things behind the engine's back (`drift`) and reads what was done
(`operations`). Ids and generated names come from `seed`, so that two rehearsals of one program make the
same things. `save` writes it completely or not at all, secrets as digests.
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
from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.fault_injection import FailOnce, FaultInjector, InjectedFaultError
from trainfleet.rehearsal.simulation.pulumi_values import digested
from trainfleet.rehearsal.simulation.stateful_rules import cloud_refuses
from trainfleet.rehearsal.simulation.values import digest


@dataclass(frozen=True)
class Operation:
    """One thing done (or refused) in the simulated cloud."""

    verb: str
    urn: str
    token: str
    id: str
    of: str = ""
    """What was refused, where `verb` is `fail`."""


class RefusedError(Exception):
    """Raised when a cloud refuses an operation because of what else exists there."""


class AlreadyExistsError(RefusedError):
    """Raised when a physical name is taken."""


@dataclass
class Cloud:
    """The simulated cloud of one rehearsal."""

    records: dict[tuple[str, str, str], CloudObject] = field(default_factory=dict)
    """By type, id and place."""
    operations: list[Operation] = field(default_factory=list)
    mistakes: dict[str, list[Mistake]] = field(default_factory=dict)
    """What Check refused, by URN; the rehearsal shows it instead of the engine's rendering."""
    unknown_functions: list[str] = field(default_factory=list)
    injector: FaultInjector = field(default_factory=FaultInjector)
    quotas: dict[str, int] = field(default_factory=dict)
    """How many of a type may exist, where it is not as live/*.toml says."""
    leave: bool = False
    """Whether what was made outside of this memory stays at the end."""
    _made: dict[str, int] = field(default_factory=dict, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def fail_create(self, urn: str, message: str) -> None:
        """Make the next create of `urn` fail."""
        self.injector = FailOnce("create", only=[urn], message=message)

    def seed(self, urn: str) -> str:
        """Return hexadecimal digits for what is generated about a resource; others once it was made, as it
        may be replaced.
        """
        with self._lock:
            return digest(urn, str(self._made.get(urn, 0)))

    def create(self, record: CloudObject, timeout: float = 0.0) -> None:
        """Add a record; `timeout` is the program's own limit for it in seconds.

        Raises:
            InjectedFaultError: the rehearsal wanted this create to fail.
            AlreadyThereError: the physical name is taken.
            RefusedError: what else exists forbids it.
        """
        with self._lock:
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
                raise AlreadyExistsError(
                    f"{record.unique.split('|', 1)[1]} already exists{owner}: physical names must be unique"
                )
            self._check_rules("create", record)
            self.perform("create", record)
            self.records[record.key] = record
            self._made[record.urn] = self._made.get(record.urn, 0) + 1
            self.operations.append(Operation("create", record.urn, record.token, record.id))
            self.injector.after_create(record, timeout)

    def update(  # noqa: PLR0917 - as the protocol says them
        self,
        token: str,
        resource_id: str,
        urn: str,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        place: str = "",
    ) -> None:
        """Replace what a record is like.

        Raises:
            InjectedFaultError: the rehearsal wanted this update to fail.
            KeyError: there is none.
            RefusedError: what else exists forbids it.
        """
        with self._lock:
            record = self.records.get((token, resource_id, place))
            if record is None:
                raise KeyError(resource_id)
            changed = CloudObject(urn, token, resource_id, record.unique, inputs, outputs, place)
            self._inject("update", changed)
            self._check_rules("update", changed)
            self.perform("update", changed)
            record.inputs, record.outputs, record.urn = inputs, outputs, urn
            self.operations.append(Operation("update", urn, token, resource_id))

    def delete(self, token: str, resource_id: str, urn: str, place: str = "") -> None:
        """Remove a record; one that is gone already is not an error, as with real clouds.

        Raises:
            InjectedFaultError: the rehearsal wanted this delete to fail.
            RefusedError: something else still uses it.
        """
        with self._lock:
            record = self.records.get((token, resource_id, place)) or CloudObject(
                urn, token, resource_id, "", {}, {}, place
            )
            self._inject("delete", record)
            self._check_rules("delete", record)
            self.perform("delete", record)
            self.records.pop(record.key, None)
            self.operations.append(Operation("delete", urn, token, resource_id))

    def perform(self, verb: str, record: CloudObject) -> None:
        """Do it: in memory there is nothing to do next to remembering; a cloud that is in part real does it
        there.

        Raises:
            RefusedError: it is refused there.
        """

    def _check_rules(self, verb: str, record: CloudObject) -> None:
        if reason := cloud_refuses(verb, record, self.records.values(), self.quotas):
            self.operations.append(Operation("refuse", record.urn, record.token, record.id, verb))
            raise RefusedError(reason)

    def _inject(self, verb: str, record: CloudObject, timeout: float = 0.0) -> None:
        try:
            self.injector.before(verb, record, timeout)
        except InjectedFaultError:
            self.operations.append(Operation("fail", record.urn, record.token, record.id, verb))
            raise

    def find(self, token: str, resource_id: str, place: str = "") -> CloudObject | None:
        """Return a copy of a record, or None."""
        with self._lock:
            return copy.deepcopy(self.records.get((token, resource_id, place)))

    def remember(self, resources: Iterable[dict[str, Any]]) -> None:
        """Take what an engine's state says exists, where it was another cloud that made it: enough for
        questions, not for changes.
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

    def everything(self) -> list[CloudObject]:
        """Return copies of all records."""
        with self._lock:
            return copy.deepcopy(list(self.records.values()))

    def of_urn(self, urn: str) -> CloudObject | None:
        """Return a copy of the record that a resource owns, or None."""
        with self._lock:
            return copy.deepcopy(
                next((record for record in self.records.values() if record.urn == urn), None)
            )

    def drift(self, urn: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change a thing behind the engine's back, inputs and outputs alike."""
        with self._lock:
            record = next(record for record in self.records.values() if record.urn == urn)
            change(record.inputs)
            change(record.outputs)

    def refuse(self, urn: str, mistakes: list[Mistake]) -> None:
        """Remember what Check refused."""
        with self._lock:
            self.mistakes[urn] = mistakes

    def save(self, path: Path) -> None:
        """Write everything that exists as one JSON document; secrets are digests."""
        with self._lock:
            document = [
                {**vars(record), "inputs": digested(record.inputs), "outputs": digested(record.outputs)}
                for record in self.records.values()
            ]
        write_whole(path, json.dumps(document, indent=1, sort_keys=True))
