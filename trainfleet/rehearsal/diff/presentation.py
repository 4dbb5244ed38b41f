"""Shared by all output formats of a diff: groups of similar changes, shortened values, and cost rows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainfleet.infra.catalog.cost import HOURS_PER_MONTH, NOT_COUNTED, Bill, BillItem
from trainfleet.rehearsal.diff.change import Change, Property, Verb
from trainfleet.rehearsal.diff.data_loss import Loss, weight
from trainfleet.rehearsal.diff.model import MAY_REPLACE, Diff, money

TITLES = {Verb.DELETE: "Deleted", Verb.REPLACE: "Replaced", Verb.UPDATE: "Updated", Verb.CREATE: "Created"}
"""In the order of a review: destructive changes first."""
_PAGE = 160
_LONG, _AROUND = 80, 24


@dataclass(frozen=True)
class Group:
    """Similar changes: of one type for the same reason, or updates of the same properties."""

    type: str
    changes: tuple[Change, ...]

    @property
    def first(self) -> Change:
        """A representative change."""
        return self.changes[0]

    @property
    def names(self) -> list[str]:
        """The names of the resources."""
        return [change.name for change in self.changes]

    @property
    def loss(self) -> Loss | None:
        """What is lost with each resource."""
        return self.first.loss

    @property
    def properties(self) -> Sequence[Property]:
        """The changed properties, if all resources of the group have the same changes."""
        same = all(change.properties == self.first.properties for change in self.changes)
        return _merged(self.first.properties) if same else ()

    @property
    def fate(self) -> str:
        """A description of what happens to the old resources; empty for creates and harmless updates."""
        if self.first.may_replace and not self.first.destructive:
            lost = self.first.at_stake.why if self.first.at_stake else "not known, review it"
            causes = some(self.first.may_replace)
            return f"no rule tells whether a change of {causes} replaces it; if so, lost: {lost}"
        if self.first.verb is Verb.UPDATE and self.loss is not None:
            interrupts = "" if self.loss.kinds == ("access",) else "an update that interrupts: "
            return f"{interrupts}{self.loss.why}"
        if self.first.verb not in (Verb.REPLACE, Verb.DELETE):
            return ""
        first = self.first
        if self.loss is None:
            words = ["it is not known what is lost with this type: review it"]
        elif first.kept and first.destructive:
            words = ["it stays in the cloud with its contents, but no stack manages it any more"]
            words += ["the new one starts empty"] if first.verb is Verb.REPLACE else []
        else:
            words = [self.loss.why]
            words += (
                ["recreated by the program"] if first.verb is Verb.REPLACE and not first.destructive else []
            )
            words += ["the old one stays in the cloud"] if first.kept else []
        if first.protected:
            words.append(
                "it is protected: the apply fails until the protection is removed (pulumi state unprotect)"
            )
        if first.delete_first:
            words.append("the old one is deleted before the new one exists")
        return "; ".join(words)

    @property
    def mark(self) -> str:
        """The label of a change that loses something (LOSES DATA, LEAVES BEHIND) or may replace; or empty."""
        if not self.first.destructive:
            return MAY_REPLACE if self.first.may_replace else ""
        if self.first.kept:
            return "LEAVES BEHIND"
        return f"LOSES {', '.join(self.loss.kinds).upper()}" if self.loss else "LOSS UNKNOWN"


def _merged(properties: Sequence[Property]) -> list[Property]:
    """Merge equal changes of three or more list items into one: `interfaces[*].groups (32 items)`."""
    alike: dict[Any, list[Property]] = {}
    for each in properties:
        alike.setdefault(
            (re.sub(r"\[\d+\]", "[*]", each.path), repr(each.old), repr(each.new), each.forces), []
        ).append(each)
    found = []
    for (path, *_), same in alike.items():
        first = same[0]
        found.append(
            first
            if len(same) < 3
            else Property(f"{path} ({len(same)} items)", first.old, first.new, first.forces)
        )
    return found


def groups(diff: Diff, verb: Verb) -> list[Group]:
    """Return the changes with one verb, grouped by similarity, most destructive first."""
    found: dict[Any, list[Change]] = {}
    for change in diff.of(verb):
        reason = (change.forced_by, change.kept, change.protected, change.delete_first)
        # An update that all resources share, such as a tag, is one group across types.
        doubt = (change.may_replace, change.at_stake, change.loss)
        key = (repr(change.properties), doubt) if verb is Verb.UPDATE else (change.type, reason)
        found.setdefault(key, []).append(change)
    made = [Group(_types(changes), tuple(changes)) for changes in found.values()]
    return sorted(
        made,
        key=lambda group: (
            not group.first.destructive,
            not group.first.may_replace,
            weight(group.first.loss),
            group.type,
            group.names[0],
        ),
    )


def _types(changes: Sequence[Change]) -> str:
    types = list(dict.fromkeys(change.type for change in changes))
    return types[0] if len(types) == 1 else f"resources of {len(types)} types"


def some(names: Sequence[str], most: int = 8) -> str:
    """Return a comma-separated list of names, truncated after `most` names."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def short(value: Any, most: int = _PAGE) -> str:
    """Return a value for display, truncated: strings unchanged, everything else as JSON."""
    if value is None:
        return "(none)"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split()) or '""'
    return text if len(text) <= most else f"{text[: most - 1]}…"


def arrow(each: Property, most: int = _PAGE) -> str:
    """Return `old → new`; for lists of scalars, the removed and added items."""
    old, new = each.old, each.new
    if isinstance(old, list) and isinstance(new, list):
        gone, come = [item for item in old if item not in new], [item for item in new if item not in old]
        if (gone or come) and len(gone) + len(come) < len(old) + len(new):
            parts = [f"− {short(item, most)}" for item in gone] + [f"+ {short(item, most)}" for item in come]
            return ", ".join(parts)
    if old is None:
        return f"+ {short(new, most)}"
    if new is None:
        return f"− {short(old, most)}"
    if old == new:
        return f"{short(old, most)} (changed)"
    if isinstance(old, str) and isinstance(new, str) and len(old) > _LONG and len(new) > _LONG:
        old, new = _apart(old, new)
    return f"{short(old, most)} → {short(new, most)}"


def _alike(one: str, two: str) -> int:
    """Return the length of the common prefix."""
    return next(
        (index for index, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two))
    )


def _apart(old: str, new: str) -> tuple[str, str]:
    """Cut two long strings to the part that differs, with some context."""
    start = _alike(old, new)
    end = _alike(old[start:][::-1], new[start:][::-1])
    start, end = max(0, start - _AROUND), max(0, end - _AROUND)
    cut = [text[start : len(text) - end] for text in (old, new)]
    return tuple(f"{'…' if start else ''}{text}{'…' if end else ''}" for text in cut)  # type: ignore[return-value] # two in, two out


DRIFT = "Changed outside Pulumi"


def drift_rows(diff: Diff, most: int = 12) -> list[tuple[str, str, list[str]]]:
    """Return the name, the type and the lines of each resource that was changed outside Pulumi."""
    found = []
    for each in diff.drift:
        lines = ["deleted" if each.gone else "changed"] if each.gone or not each.properties else []
        lines += [f"{one.path}: {arrow(one)}" for one in each.properties[:most]]
        if len(each.properties) > most:
            lines.append(f"and {len(each.properties) - most} more properties")
        found.append((each.name, each.token, lines))
    return found


@dataclass(frozen=True)
class CostRow:
    """One cost row as text: minimum and maximum, before and after."""

    name: str
    what: str
    before: str
    after: str
    month: str
    price: str
    changed: bool


def cost_rows(diff: Diff) -> list[CostRow]:
    """Return a row for each cost item on either side, totals last."""
    before, after = _parts(diff.before), _parts(diff.after)
    rows = [_row(name, before.get(name), after.get(name)) for name in dict.fromkeys([*before, *after])]
    if not rows:
        return []
    old, new = diff.before or Bill(()), diff.after or Bill(())
    for label, hours in (("all, by the hour", 1), ("all, by the month", HOURS_PER_MONTH)):
        low, high = (
            (new.min_usd_per_hour - old.min_usd_per_hour) * hours,
            (new.max_usd_per_hour - old.max_usd_per_hour) * hours,
        )
        delta = _delta(low, high) if hours > 1 else ""
        rows.append(
            CostRow(
                label,
                "",
                _sum(diff.before, hours),
                _sum(diff.after, hours),
                delta,
                "",
                abs(low) + abs(high) > 0.005,
            )
        )
    return rows


def _parts(bill: Bill | None) -> dict[str, BillItem]:
    return {part.name: part for part in bill.parts} if bill else {}


def _row(name: str, old: BillItem | None, new: BillItem | None) -> CostRow:
    part = new or old
    assert part is not None
    what = part.what if old is None or new is None or old.what == new.what else f"{old.what} → {new.what}"
    known = all(each is None or each.usd_per_hour is not None for each in (old, new))
    low = ((new and new.min_usd_per_hour) or 0.0) - ((old and old.min_usd_per_hour) or 0.0)
    high = ((new and new.max_usd_per_hour) or 0.0) - ((old and old.max_usd_per_hour) or 0.0)
    month = _delta(low * HOURS_PER_MONTH, high * HOURS_PER_MONTH) if known else "not known"
    dated = (
        f"{part.price_date or 'estimate, undated'}, {part.price_region}"
        if part.usd_per_hour is not None
        else "no price known"
    )
    return CostRow(
        name, what, _range(old), _range(new), month, dated, old is None or new is None or old != new
    )


def _range(part: BillItem | None) -> str:
    if part is None:
        return "–"
    if part.usd_per_hour is None:
        return f"{part.least:g}–{part.most:g} × unknown"
    least, most = (part.min_usd_per_hour or 0.0), (part.max_usd_per_hour or 0.0)
    return f"${least:,.2f}" if least == most else f"${least:,.2f} – ${most:,.2f}"


def _sum(bill: Bill | None, hours: int) -> str:
    if bill is None:
        return "–"
    least, most = bill.min_usd_per_hour * hours, bill.max_usd_per_hour * hours
    digits = 2 if hours == 1 else 0
    more = " + unknown" if bill.unknown else ""
    return f"${least:,.{digits}f} – ${most:,.{digits}f}{more}"


def _delta(low: float, high: float) -> str:
    if abs(low) < 0.5 and abs(high) < 0.5:
        return "–"
    return money(low) if abs(low - high) < 0.5 else f"{money(low)} to {money(high)}"


def cost_notes(diff: Diff) -> list[str]:
    """Return the notes below the costs: limits, budget, unknown and estimated prices, what is not counted."""
    bills = [bill for bill in (diff.before, diff.after) if bill]
    if not bills:
        return ["The cost is not known."]
    notes = []
    if not any(bill.parts for bill in bills):
        what = "no resource is billed by the hour; the machines of an existing cluster are paid for elsewhere"
        notes.append(f"No cost is counted: {what}.")
    notes += [f"TOO EXPENSIVE: {each}." for each in diff.over_limit]
    notes += [_budget(diff.after)] if diff.after and diff.after.budget_usd_per_month else []
    if unknown := _of(bills, "unknown"):
        notes.append(f"No price is known for {unknown}: every total is too low by that amount.")
    if types := _of(bills, "not_known"):
        notes.append(f"It is not known whether {types} is billed.")
    if estimated := _of(bills, "estimated"):
        notes.append(f"Estimated: {estimated}. The source of the price has no date.")
    notes += _elsewhere(bills)
    if unused := _of(bills[-1:], "unused_usage"):
        notes.append(f"Usage that no resource of the stack is billed by: {unused}.")
    if any(bill.parts for bill in bills):
        notes.append("List prices, each with its date and region; reserved capacity at the on-demand price.")
    if by_usage := _of(bills, "by_usage"):
        notes.append(f"Billed by use, and not counted without an assumption (--usage): {by_usage}.")
    if not all(bill.planned for bill in bills):
        notes.append(f"From the spec; not counted: {NOT_COUNTED}.")
    return notes


def _of(bills: Sequence[Bill], names: str) -> str:
    return ", ".join(dict.fromkeys(name for bill in bills for name in getattr(bill, names)))


def _elsewhere(bills: Sequence[Bill]) -> list[str]:
    """Return which prices are of another region than the one where the resources run."""
    parts = [part for bill in bills for part in bill.parts if part.elsewhere]
    pairs = dict.fromkeys((part.region, part.price_region) for part in parts)
    notes = []
    for region, priced in pairs:
        names = dict.fromkeys(p.name for p in parts if (p.region, p.price_region) == (region, priced))
        notes.append(f"No price is known for {region}; that of {priced} is used: {', '.join(names)}.")
    return notes


def _budget(bill: Bill) -> str:
    least, most = (bill.share_of_budget(usd) or 0 for usd in (bill.min_usd_per_hour, bill.max_usd_per_hour))
    return (
        f"Of the budget of ${bill.budget_usd_per_month:,.0f} a month: {least:.0%} always running, {most:,.0%}"
        " with all pools at their largest."
    )


def sides(diff: Diff) -> str:
    """Return the two revisions, for example `abc123 (merge base with main) → def456 (HEAD)`."""
    return f"{_side(diff.base)} → {_side(diff.head)}"


def _side(revision: Any) -> str:
    return (
        f"{revision.short} ({revision.shown_as})"
        if revision.commit and not revision.commit.startswith(revision.shown_as)
        else revision.short
    )
