"""Faults that a simulated cloud injects: failing operations, throttled calls, delays, and an engine crash.

A rehearsal gives its `Cloud` one `FaultInjector` at a time. The cloud calls it before each operation and
after each create, while it holds its lock.
"""

# ruff: noqa: ARG002 - all faults share these signatures; not every fault uses every argument

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.values import digest

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

TRIES = 5
"""How often the simulated providers send a throttled call before they fail."""
PRINCIPALS = {
    "aws:iam/role:Role": (
        "docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot.html#troubleshoot_general_eventual-consistency"
    ),
    "aws:iam/instanceProfile:InstanceProfile": (
        "docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot.html#troubleshoot_general_eventual-consistency"
    ),
    "gcp:serviceaccount/account:Account": (
        "cloud.google.com/iam/docs/service-accounts-create: eventually consistent, may not be visible for"
        " 60 s"
    ),
    "azure-native:managedidentity:UserAssignedIdentity": (
        "learn.microsoft.com/azure/role-based-access-control/troubleshooting: replication delay"
    ),
}
"""Resources that other services see only after a delay, each with its source."""


class InjectedFaultError(Exception):
    """Raised for a failure that the rehearsal injects."""


class ThrottledError(InjectedFaultError):
    """Raised if calls come too fast. The provider tries again."""


class NotReadyError(InjectedFaultError):
    """Raised if a resource was created but did not become ready within its timeout."""


class FaultInjector:
    """The base class. It injects nothing."""

    def before(self, verb: str, record: CloudObject, timeout: float) -> None:
        """Raise `InjectedFaultError` to make an operation fail.

        `timeout` is the timeout that the program sets for the resource, in seconds, or 0 if it sets none.
        """

    def after_create(self, record: CloudObject, timeout: float) -> None:
        """React to a create. If it raises, the provider reports a failure although the resource exists."""

    def advance_time(self) -> None:
        """Simulate the time that passes between two commands."""


class FailOnce(FaultInjector):
    """Fails the first create, update or delete of each resource, or only of the URNs in `only`."""

    def __init__(self, *verbs: str, only: Iterable[str] | None = None, message: str = "") -> None:
        self.verbs, self.only = frozenset(verbs), None if only is None else frozenset(only)
        self.message = message
        self.injected: dict[str, set[str]] = {verb: set() for verb in verbs}

    def before(self, verb: str, record: CloudObject, timeout: float) -> None:
        if (
            verb not in self.verbs
            or record.urn in self.injected[verb]
            or (self.only is not None and record.urn not in self.only)
        ):
            return
        self.injected[verb].add(record.urn)
        raise InjectedFaultError(self.message or f"rehearsed fault: the first {verb} of every resource fails")


class Throttle(FaultInjector):
    """Throttles about half of the creates. Most succeed after retries, and the rest fail for this run.

    `always` is the URN of a resource that always fails.
    """

    def __init__(self, seed: int, always: str) -> None:
        self.seed, self.always = seed, always
        self.calls: dict[str, int] = {}
        self.gave_up: set[str] = set()

    def before(self, verb: str, record: CloudObject, timeout: float) -> None:
        if verb != "create":
            return
        self.calls[record.urn] = self.calls.get(record.urn, 0) + 1
        if self.calls[record.urn] > self.refusals(record.urn):
            return
        if self.calls[record.urn] == TRIES:
            self.gave_up.add(record.urn)
        raise ThrottledError(f"ThrottlingException: Rate exceeded (tried {TRIES} times)")

    def refusals(self, urn: str) -> int:
        """Return how many creates of a resource are throttled."""
        if urn == self.always:
            return TRIES
        return (0, 0, 0, 0, 1, 2, 3, TRIES)[int(digest(urn, str(self.seed))[:6], 16) % 8]

    @property
    def absorbed(self) -> int:
        """How many resources were throttled and then created by the provider's own retries."""
        return len({urn for urn, calls in self.calls.items() if calls > 1} - self.gave_up)


class Lag(FaultInjector):
    """Hides a new role, service account or identity from other services until the next run."""

    def __init__(self) -> None:
        self.fresh: dict[str, tuple[str, list[str]]] = {}
        self.injected: set[str] = set()

    def before(self, verb: str, record: CloudObject, timeout: float) -> None:
        if verb != "create" or not self.fresh or record.urn in self.injected:
            return
        text = json.dumps(plain(record.inputs))
        for token, marks in self.fresh.values():
            if token.split(":")[0] == record.token.split(":")[0] and (
                found := next((mark for mark in marks if mark in text), None)
            ):
                self.injected.add(record.urn)
                raise InjectedFaultError(
                    f"{found} was just made and cannot be found yet (eventual consistency)"
                )

    def after_create(self, record: CloudObject, timeout: float) -> None:
        if record.token in PRINCIPALS:
            outputs = plain(record.outputs)
            known = (record.id, *(outputs.get(name) for name in ("arn", "email", "principalId", "clientId")))
            self.fresh[record.urn] = (
                record.token,
                [mark for mark in known if isinstance(mark, str) and len(mark) > 3],
            )

    def advance_time(self) -> None:
        self.fresh.clear()


class Hang(FaultInjector):
    """Creates resources that do not become ready in time: those with a timeout in the program, and `also`."""

    def __init__(self, also: str) -> None:
        self.also = also
        self.injected: set[str] = set()

    def after_create(self, record: CloudObject, timeout: float) -> None:
        if record.urn in self.injected or not (timeout or record.urn == self.also):
            return
        self.injected.add(record.urn)
        limit = (
            f"after {timeout:.0f} s, the program's own limit"
            if timeout
            else "within the provider's own limit"
        )
        raise NotReadyError(f"timeout while waiting for it to become ready ({limit}); it exists")


class Crash(FaultInjector):
    """Kills the engine right after `fault_target` was created, before the engine receives the response.

    Operations that the engine started later fail.
    """

    def __init__(self, fault_target: str, kill: Callable[[], None]) -> None:
        self.fault_target, self.kill = fault_target, kill
        self.dead = False

    def before(self, verb: str, record: CloudObject, timeout: float) -> None:
        if self.dead:
            raise InjectedFaultError("the connection was lost")

    def after_create(self, record: CloudObject, timeout: float) -> None:
        if record.urn == self.fault_target and not self.dead:
            self.dead = True
            self.kill()
