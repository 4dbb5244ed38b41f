"""The data model of a diff, in the order of a review. Everything is plain data that serializes to JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trainfleet.infra.catalog.cost import HOURS_PER_MONTH, Bill, CostLimits
from trainfleet.rehearsal.diff.access import AccessChange
from trainfleet.rehearsal.diff.bootstrap import bootstrap_notes, widens
from trainfleet.rehearsal.diff.change import Change, Property, Verb
from trainfleet.rehearsal.diff.data_loss import Loss, weight
from trainfleet.rehearsal.diff.environments import Upgrade
from trainfleet.rehearsal.diff.helm.comparison import ChartDiff
from trainfleet.rehearsal.diff.helm.steps import chart_steps
from trainfleet.rehearsal.diff.policy_changes import Weakened
from trainfleet.rehearsal.diff.procedure import Step, procedure
from trainfleet.rehearsal.diff.sdk_changes import SdkChange
from trainfleet.rehearsal.diff.worktrees import Revision

SCHEMA_VERSION = 1


class Verdict(StrEnum):
    """The result of the whole diff; each has its own exit code."""

    NONE = "no change"
    CHANGE = "change"
    INCOMPLETE = "incomplete preview"
    """A recording that does not contain the whole plan."""
    UNKNOWN = "may replace (unknown)"
    """An update that may be a replacement: no rule tells what the provider does."""
    ACCESS = "widens access"
    """A bootstrap stack gives somebody more access."""
    DESTRUCTIVE = "destructive change"


EXIT = {
    Verdict.NONE: 0, Verdict.CHANGE: 2, Verdict.INCOMPLETE: 3, Verdict.UNKNOWN: 3, Verdict.ACCESS: 3,
    Verdict.DESTRUCTIVE: 3,
}  # fmt: skip
TOO_EXPENSIVE = 4
"""Exit code if the head costs more than a limit. It is used instead of the verdict's."""


@dataclass(frozen=True)
class Drift:
    """A resource that was changed or deleted without Pulumi."""

    urn: str
    token: str
    name: str
    gone: bool
    properties: tuple[Property, ...] = ()
    """The values in the state and in the cloud."""

    def as_json(self) -> dict[str, Any]:
        """Return the element of `drift` in the JSON document."""
        return {
            "urn": self.urn,
            "type": self.token,
            "name": self.name,
            "what": "deleted" if self.gone else "changed",
            "properties": [
                {"path": each.path, "state": each.old, "cloud": each.new} for each in self.properties
            ],
        }


@dataclass(frozen=True)
class Failing:
    """A policy violation of one resource."""

    policy: str
    resource: str
    message: str
    level: str


@dataclass(frozen=True)
class SpecChange:
    """A changed setting in the stack file and its location."""

    path: str
    old: Any
    new: Any
    where: str


@dataclass(frozen=True)
class Diff:
    """A complete diff. `before` and `after` are None if the stack does not exist or its spec is invalid."""

    stack: str
    base: Revision
    head: Revision
    stack_is: str
    """`there` on both sides, `new` in the head, or `deleted` in the head."""
    changes: tuple[Change, ...]
    before: Bill | None
    after: Bill | None
    newly_failing: tuple[Failing, ...] = ()
    policies_ran: bool = True
    spec: tuple[SpecChange, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    base_from_cache: bool = False
    unchanged: int = 0
    weakened: tuple[Weakened, ...] = ()
    accept_unknown: bool = False
    """Whether updates that may replace count as updates in the verdict, and incomplete previews as whole."""
    access: tuple[AccessChange, ...] = ()
    limits: CostLimits = field(default_factory=CostLimits)
    upgrades: tuple[Upgrade, ...] = ()
    sdk: tuple[SdkChange, ...] = ()
    incomplete: tuple[str, ...] = ()
    """Why the recording of a real preview does not contain the whole plan; empty if it does."""
    drift: tuple[Drift, ...] = ()
    """What a refresh found changed outside Pulumi."""
    settings_file: str = ""
    """The settings file of the stack, relative to the project; empty if there is none."""
    is_bootstrap: bool = False
    """Whether the stack declares who may apply the others: then access that is gained needs an approval."""
    plan_sha256: str = ""
    """The digest of the engine's plan that a recorded preview saved; empty if none was given."""
    charts: tuple[ChartDiff, ...] = ()
    """The charts of which both versions were rendered."""

    def of(self, verb: Verb) -> list[Change]:
        """Return the changes with one verb, sorted by name."""
        return [change for change in self.changes if change.verb is verb]

    @property
    def in_charts(self) -> list[Change]:
        """The objects of charts that the apply changes."""
        return [change for chart in self.charts for change in chart.changes]

    @property
    def verdict(self) -> Verdict:
        """The verdict. A spec change alone changes nothing in a cloud."""
        every = [*self.changes, *self.in_charts]
        if any(change.destructive for change in every):
            return Verdict.DESTRUCTIVE
        if self.is_bootstrap and widens(self.access):
            return Verdict.ACCESS
        if not self.accept_unknown and any(change.uncertain for change in every):
            return Verdict.UNKNOWN
        if self.incomplete and not self.accept_unknown:
            return Verdict.INCOMPLETE
        changed = (
            every
            or any(chart.labels_only for chart in self.charts)
            or self.newly_failing
            or self.weakened
            or self.drift
        )
        return Verdict.CHANGE if changed or self.providers else Verdict.NONE

    @property
    def providers(self) -> list[Upgrade]:
        """The provider packages that differ: an apply runs another provider, whatever the program says."""
        return [each for each in self.upgrades if each.provider]

    @property
    def exit_code(self) -> int:
        """The verdict's code, or TOO_EXPENSIVE if the head costs more than a limit."""
        return TOO_EXPENSIVE if self.over_limit else EXIT[self.verdict]

    @property
    def over_limit(self) -> list[str]:
        """The limits of cost that the head exceeds."""
        return self.limits.exceeded(self.after) if self.after else []

    @property
    def destructive(self) -> list[Change]:
        """The destructive changes, deletions first."""
        return sorted(
            (change for change in self.changes if change.destructive),
            key=lambda change: (change.verb is not Verb.DELETE, change.name),
        )

    @property
    def blast_radius(self) -> str:
        """A one-line summary: counts, losses, cost difference and newly failing policies."""
        parts = [self._counted(self.changes), self._in_charts()]
        parts = [*filter(None, parts)] or ["nothing changes in the cloud"]
        parts += [*self._money(), *self._policies()]
        parts += ["TOO EXPENSIVE"] if self.over_limit else []
        if self.is_bootstrap:
            parts += bootstrap_notes(self.access)
        if self.drift:
            parts.append(f"{len(self.drift)} changed outside Pulumi")
        if self.incomplete:
            parts.append("THE PREVIEW IS INCOMPLETE")
        return "; ".join(parts)

    @property
    def procedure(self) -> list[Step]:
        """What `pulumi up` alone does not do."""
        return [*chart_steps(self.charts), *procedure(self.changes)]

    @property
    def losses(self) -> str:
        """What the whole change loses or may lose, in words; empty if nothing."""
        return self._lost([*self.changes, *self.in_charts]).strip(" ()")

    @property
    def cost_difference(self) -> str:
        """The difference of the monthly cost, in words."""
        return "; ".join(self._money())

    def _in_charts(self) -> str:
        relabelled = sum(chart.labels_only for chart in self.charts)
        parts = [self._counted(self.in_charts), f"{relabelled} relabelled" if relabelled else ""]
        return f"in charts: {', '.join(filter(None, parts))}" if any(parts) else ""

    def _counted(self, changes: Sequence[Change]) -> str:
        """Return how many changes of each verb there are, and what they lose."""
        found = {verb: [change for change in changes if change.verb is verb] for verb in Verb}
        return ", ".join(
            f"{len(those)} {_PAST[verb]}{self._lost(those)}" for verb, those in found.items() if those
        )

    def _lost(self, changes: Sequence[Change]) -> str:
        """Summarize the losses, data first, with the names of a few resources."""
        loud = [change for change in changes if change.destructive]
        unsure = sorted(change.name for change in changes if change.may_replace and not change.destructive)
        groups: dict[str, list[str]] = {MAY_REPLACE: unsure} if unsure else {}
        for change in sorted(loud, key=lambda change: (weight(change.loss), change.name)):
            kind = (
                "LEAVES BEHIND"
                if change.kept
                else f"LOSES {change.loss.kinds[0].upper()}"
                if change.loss
                else "LOSS UNKNOWN"
            )
            groups.setdefault(kind, []).append(change.name)
        order = sorted(groups, key=lambda kind: (_ORDER.index(kind) if kind in _ORDER else len(_ORDER), kind))
        return f" ({'; '.join(f'{kind}: {_some(groups[kind])}' for kind in order)})" if order else ""

    def _money(self) -> list[str]:
        if self.before is None and self.after is None:
            return ["cost not known"]
        before, after = self.before or Bill(()), self.after or Bill(())
        low = (after.min_usd_per_hour - before.min_usd_per_hour) * HOURS_PER_MONTH
        high = (after.max_usd_per_hour - before.max_usd_per_hour) * HOURS_PER_MONTH
        missing = list(dict.fromkeys([*before.unknown, *after.unknown]))
        text = _difference(low, high)
        return [text + (f" (no price known for {', '.join(missing)})" if missing else "")]

    def _policies(self) -> list[str]:
        failing = len({failing.policy for failing in self.newly_failing})
        weaker = len({each.policy for each in self.weakened})
        return [
            f"{count} {one if count == 1 else more}"
            for count, one, more in (
                (failing, "policy newly fails", "policies newly fail"),
                (weaker, "policy is weaker", "policies are weaker"),
            )
            if count
        ] + [
            f"{each.package} {each.before or '(none)'} → {each.after or '(none)'}" for each in self.providers
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the `--format json` document; `schema_version` increases when a key changes its meaning."""
        return {
            "schema_version": SCHEMA_VERSION,
            "stack": self.stack,
            "stack_is": self.stack_is,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "blast_radius": self.blast_radius,
            "base": {
                "ref": self.base.shown_as,
                "commit": self.base.commit or None,
                "subject": self.base.subject,
            },
            "head": {
                "ref": self.head.shown_as,
                "commit": self.head.commit or None,
                "subject": self.head.subject,
            },
            "counts": {verb.value: len(self.of(verb)) for verb in Verb} | {"unchanged": self.unchanged},
            "unknown": {
                "accepted": self.accept_unknown,
                "may_replace": sum(bool(change.may_replace) for change in self.changes),
                "may_lose": sum(change.uncertain for change in self.changes),
            },
            "changes": [_change(change) for change in self.changes],
            "cost": {
                "before": self.before.as_json() if self.before else None,
                "after": self.after.as_json() if self.after else None,
                "over_limit": self.over_limit,
            },
            "policies": {
                "ran": self.policies_ran,
                "newly_failing": [vars(failing) for failing in self.newly_failing],
                "weakened": [vars(each) for each in self.weakened],
            },
            "upgrades": [vars(each) for each in self.upgrades],
            "sdk": [vars(change) for change in self.sdk],
            "access": [vars(change) for change in self.access],
            "spec": [vars(change) for change in self.spec],
            "drift": [each.as_json() for each in self.drift],
            "charts": [_chart(each) for each in self.charts],
            "procedure": [vars(step) for step in self.procedure],
            "incomplete": list(self.incomplete),
            "plan_sha256": self.plan_sha256 or None,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 2),
            "base_from_cache": self.base_from_cache,
        }


_PAST = {Verb.CREATE: "created", Verb.UPDATE: "updated", Verb.REPLACE: "replaced", Verb.DELETE: "deleted"}
MAY_REPLACE = "MAY REPLACE (UNKNOWN)"
_ORDER = ["LOSES DATA", "LOSES KEYS", "LEAVES BEHIND", "LOSES ACCESS", "LOSES WORK", "LOSES ADDRESSES"]


def _change(change: Change) -> dict[str, Any]:
    return {
        "verb": change.verb,
        "type": change.token,
        "name": change.name,
        "urn": change.urn,
        "destructive": change.destructive,
        "properties": [vars(each) for each in change.properties],
        "forced_by": list(change.forced_by),
        "may_replace": list(change.may_replace),
        "loss": _loss(change.loss),
        "at_stake": _loss(change.at_stake),
        "protected": change.protected,
        "kept": change.kept,
        "delete_first": change.delete_first,
    }


def _chart(chart: ChartDiff) -> dict[str, Any]:
    return {
        "name": chart.name,
        "type": chart.token,
        "urn": chart.urn,
        "before": chart.before,
        "after": chart.after,
        "changes": [
            {**_change(each.change), "applied": each.applied, "note": each.note} for each in chart.objects
        ],
        "labels_only": chart.labels_only,
        "restarted": list(chart.restarted),
        "images": {"removed": list(chart.images[0]), "added": list(chart.images[1])},
        "notes": list(chart.notes),
    }


def _loss(loss: Loss | None) -> dict[str, Any] | None:
    return {"kinds": list(loss.kinds), "why": loss.why, "loud": loss.loud} if loss else None


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _difference(low: float, high: float) -> str:
    """Return the monthly cost difference, with the minimum and the maximum number of nodes."""
    if abs(low) < 0.5 and abs(high) < 0.5:
        return "cost unchanged"
    if abs(low - high) < 0.5:
        return f"{money(low)}/month"
    least = f"{money(low)}/month at min" if abs(low) >= 0.5 else "unchanged at min"
    return f"{least}, {money(high)}/month at max" if abs(high) >= 0.5 else f"{least}, unchanged at max"


def money(usd: float, *, sign: bool = True) -> str:
    """Format dollars without cents; with `sign`, prefix an increase with +."""
    mark = "−" if usd < -0.5 else ("+" if sign else "")
    return f"{mark}${abs(usd):,.0f}"
