"""The data model of a drift report. Everything is plain data that serializes to JSON; secrets are masked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainfleet.rehearsal.diff.access import AccessChange
from trainfleet.rehearsal.diff.data_loss import Loss

SCHEMA_VERSION = 1
DRIFT_EXIT_CODE = 3


class Severity(StrEnum):
    """How urgent the drift of a resource is, the most urgent first."""

    HIGH = "high"
    """Something is lost that a later apply does not restore, or access changed."""
    MEDIUM = "medium"
    LOW = "low"
    """Only tags, labels and descriptions."""


class NextUp(StrEnum):
    """What `pulumi up --refresh` does about a drifted resource."""

    UPDATE = "update"
    REPLACE = "replace"
    UNKNOWN = "may replace (unknown)"
    CREATE = "create"
    DELETE = "delete"
    """The program does not have the resource any more."""
    NOTHING = "nothing"


@dataclass(frozen=True)
class DriftedProperty:
    """A property with its value in the state and in the cloud; None means absent."""

    path: str
    state: Any
    cloud: Any
    expected: str = ""
    """Why it is expected; empty if it is drift."""

    def as_json(self) -> dict[str, Any]:
        """Return the element of `properties` in the JSON document."""
        return {"path": self.path, "state": self.state, "cloud": self.cloud, "expected": self.expected}


@dataclass(frozen=True)
class DriftedResource:
    """A resource that was changed or deleted without Pulumi."""

    urn: str
    token: str
    name: str
    deleted: bool
    severity: Severity
    next_up: NextUp
    certain: bool
    """Whether the provider computed `next_up`; otherwise it follows from the rules."""
    properties: tuple[DriftedProperty, ...] = ()
    loss: Loss | None = None
    """What is lost: with the deleted resource, or by the replacement that restores it."""
    repair: str = ""
    expected: str = ""
    """Why the whole resource is expected to differ; empty if it is drift."""

    def as_json(self) -> dict[str, Any]:
        """Return the element of `resources` in the JSON document."""
        return {
            "urn": self.urn,
            "type": self.token,
            "name": self.name,
            "what": "deleted" if self.deleted else "changed",
            "severity": self.severity,
            "next_up": self.next_up,
            "certain": self.certain,
            "properties": [each.as_json() for each in self.properties],
            "loss": (
                {"kinds": list(self.loss.kinds), "why": self.loss.why, "loud": self.loss.loud}
                if self.loss
                else None
            ),
            "repair": self.repair,
            "expected": self.expected,
        }


@dataclass(frozen=True)
class DriftReport:
    """The drift of one stack."""

    project: str
    stack: str
    source: str
    """Where the facts are from: a refresh of this engine, or a recording."""
    resources: tuple[DriftedResource, ...]
    """What drifted, the most severe first."""
    expected: tuple[DriftedResource, ...] = ()
    """What differs, and is accepted or known to change by itself."""
    access: tuple[AccessChange, ...] = ()
    """Who can do more or less in the cloud than in the state."""
    pending: tuple[str, ...] = ()
    """Changes of the program that are not applied yet, in words; the next up makes them too."""
    follows: tuple[str, ...] = ()
    """Changes of resources that depend on what drifted, in words: the repair makes them too."""
    incomplete: tuple[str, ...] = ()
    """Why the recording may not contain all drift."""
    notes: tuple[str, ...] = ()
    checked: int = 0
    """Number of resources that were read."""
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """3 if something drifted, 1 if a recording without drift is incomplete, else 0."""
        return DRIFT_EXIT_CODE if self.resources else int(bool(self.incomplete))

    @property
    def severity(self) -> Severity | None:
        """The most urgent severity; None without drift."""
        order = list(Severity)
        return min((each.severity for each in self.resources), key=order.index, default=None)

    @property
    def fingerprint(self) -> str:
        """What an issue about this stack is found again by: it depends on project and stack only."""
        return f"trainfleet-drift:{self.project}/{self.stack}"

    @property
    def digest(self) -> str:
        """A digest of what drifted. It is equal as long as the drift is the same."""
        facts = sorted(
            [each.urn, each.deleted, [[one.path, one.state, one.cloud] for one in each.properties]]
            for each in self.resources
        )
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` document; `schema_version` increases when a key changes its meaning."""
        return {
            "schema_version": SCHEMA_VERSION,
            "project": self.project,
            "stack": self.stack,
            "source": self.source,
            "exit_code": self.exit_code,
            "severity": self.severity,
            "fingerprint": self.fingerprint,
            "digest": self.digest,
            "checked": self.checked,
            "resources": [each.as_json() for each in self.resources],
            "expected": [each.as_json() for each in self.expected],
            "access": [vars(change) for change in self.access],
            "pending": list(self.pending),
            "follows": list(self.follows),
            "incomplete": list(self.incomplete),
            "notes": list(self.notes),
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True)
class NotChecked:
    """A stack without a report: it is not deployed, or the refresh failed."""

    stack: str
    why: str


@dataclass(frozen=True)
class DriftReports:
    """The drift of all stacks of a project."""

    project: str
    reports: tuple[DriftReport, ...]
    failed: tuple[NotChecked, ...] = ()
    skipped: tuple[NotChecked, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 if a stack failed, else the highest code of a stack."""
        return 1 if self.failed else max((each.exit_code for each in self.reports), default=0)

    @property
    def fingerprint(self) -> str:
        """What an issue about all stacks of the project is found again by."""
        return f"trainfleet-drift:{self.project}"

    @property
    def digest(self) -> str:
        """A digest of what drifted and what failed."""
        facts = [[each.stack, each.digest] for each in self.reports]
        facts += [[each.stack, "failed"] for each in self.failed]
        return hashlib.sha256(json.dumps(sorted(facts)).encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` document of `--all`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "project": self.project,
            "exit_code": self.exit_code,
            "fingerprint": self.fingerprint,
            "digest": self.digest,
            "stacks": [each.as_json() for each in self.reports],
            "failed": [vars(each) for each in self.failed],
            "skipped": [vars(each) for each in self.skipped],
        }


def some(names: Sequence[str], most: int = 8) -> str:
    """Return a comma-separated list of names, truncated after `most` names."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
