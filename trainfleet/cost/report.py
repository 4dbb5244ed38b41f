"""The costs of a stack in one document: the estimate, the plan, the bill, and how they compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainfleet.cost.bill import OTHERS, BillTotals, Month, Owners, items, largest
from trainfleet.cost.run_hours import RunHours
from trainfleet.infra.catalog.cost import HOURS_PER_MONTH, Bill, BillItem

SCHEMA_VERSION = 1
TOLERANCE = 0.05
"""By how much a bill may leave the range of the estimate and still agree with it."""


@dataclass(frozen=True)
class Comparison:
    """An item on the bill and in the estimate, for the hours that the bill covers."""

    item: str
    billed: float
    least: float | None
    """The estimate with every pool at its smallest; None: not estimated, or the price is unknown."""
    most: float | None

    @property
    def verdict(self) -> str:
        """`as estimated`, `above`, `below`, `not estimated` or `not billed`."""
        if self.most is None or self.least is None:
            return "not estimated"
        if not self.billed and self.least:
            return "not billed"
        if self.billed > self.most * (1 + TOLERANCE):
            return "above"
        return "below" if self.billed < self.least * (1 - TOLERANCE) else "as estimated"


@dataclass(frozen=True)
class GpuHours:
    """The GPU hours of a pool in the month of a bill."""

    pool: str
    billed: float
    cost: float
    held: float | None
    """Held by runs; None if no run records were read."""
    trained: float | None

    @property
    def idle(self) -> float | None:
        """Billed hours in which no run trained."""
        return None if self.trained is None else max(0.0, self.billed - self.trained)

    @property
    def idle_cost(self) -> float | None:
        """What they cost, at the pool's own rate."""
        return None if self.idle is None or not self.billed else self.cost * self.idle / self.billed


@dataclass(frozen=True)
class RunCost:
    """What a run cost on the bill."""

    run: str
    owner: str
    pool: str
    gpu_hours: float | None
    cost: float
    by: str
    """`tag`, or `share` of the pool's GPU hours."""


@dataclass(frozen=True)
class BillReport:
    """A month of the bill, seen from one stack."""

    currency: str
    basis: str
    month: Month
    months: tuple[str, ...]
    compared: tuple[Comparison, ...]
    gpu_hours: tuple[GpuHours, ...]
    runs: tuple[RunCost, ...]
    owners: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the value of `bill` in the JSON document."""
        month = self.month
        return {
            "month": month.name,
            "months": list(self.months),
            "currency": self.currency,
            "basis": self.basis,
            "cost": round(month.ours, 2),
            "billed_cost": round(month.billed, 2),
            "effective_cost": round(month.effective, 2),
            "covered_until": month.end.isoformat() if month.end else None,
            "covered_hours": month.covered_hours,
            "forecast": None if month.forecast is None else round(month.forecast, 2),
            "by": {
                name: [{"name": key, "cost": round(cost, 2)} for key, cost in largest(table)]
                for name, table in month.by.items()
                if name not in ("run", "owner")
            },
            "owners": [{"name": key, "cost": round(cost, 2)} for key, cost in self.owners],
            "runs": [{**vars(run), "cost": round(run.cost, 2)} for run in self.runs],
            "items": [{**vars(each), "verdict": each.verdict} for each in self.compared],
            "gpu_hours": [
                {**vars(each), "idle": each.idle, "idle_cost": each.idle_cost} for each in self.gpu_hours
            ],
            "untagged": {
                "cost": round(month.untagged, 2),
                "by_service": [
                    {"name": key, "cost": round(cost, 2)} for key, cost in largest(month.untagged_by)
                ],
            },
            "other_platforms": [{"name": key, "cost": round(cost, 2)} for key, cost in largest(month.others)],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class CostReport:
    """The costs of one stack."""

    stack: str
    platform: str
    estimate: Bill
    plan: Bill | None = None
    plan_from: str = ""
    bill: BillReport | None = None
    notes: tuple[str, ...] = ()

    @property
    def budget(self) -> float | None:
        """The budget of a month in USD; None without one."""
        return self.estimate.budget_usd_per_month or (self.plan.budget_usd_per_month if self.plan else None)

    def share_of_budget(self, usd: float | None) -> float | None:
        """Return a month's cost as a share of the budget; None without one."""
        return usd / self.budget if self.budget and usd is not None else None

    def as_json(self) -> dict[str, Any]:
        """Return the `--json` document; `schema_version` increases when a key changes its meaning."""
        found = self.bill
        dollars = found is not None and found.currency == "USD"
        return {
            "schema_version": SCHEMA_VERSION,
            "stack": self.stack,
            "platform": self.platform,
            "estimate": self.estimate.as_json(),
            "plan": self.plan.as_json() if self.plan else None,
            "plan_from": self.plan_from,
            "bill": found.as_json() if found else None,
            "budget": {
                "usd_per_month": self.budget,
                "spent": self.share_of_budget(found.month.ours) if found and dollars else None,
                "forecast": self.share_of_budget(found.month.forecast) if found and dollars else None,
            },
            "notes": list(self.notes),
        }


def bill_report(
    totals: BillTotals, month: str, owners: Owners, estimate: Bill, runs: Sequence[RunHours] | None
) -> BillReport:
    """Return what a month of the bill says.

    Args:
        totals: the sums of the bill.
        month: the month, `2026-11`, which is in the bill.
        owners: whose a charge is.
        estimate: what the items are compared with: the plan's or the spec's.
        runs: the GPU hours of runs; None if no records were read.
    """
    found = totals.months[month]
    hours = tuple(_gpu_hours(found, runs))
    run_costs = tuple(_run_costs(found, hours, runs or ()))
    return BillReport(
        totals.currency,
        totals.basis,
        found,
        tuple(sorted(totals.months)),
        tuple(_compared(found, estimate, owners)) if totals.currency == "USD" else (),
        hours,
        run_costs,
        tuple(_owners(found, run_costs, owners)),
        tuple(_notes(totals, found, owners, runs)),
    )


def _gpu_hours(month: Month, runs: Sequence[RunHours] | None) -> list[GpuHours]:
    found = []
    for pool, billed in largest(month.gpu_hours):
        ours = [run for run in runs or () if run.pool == pool]
        trained = [run.trained_gpu_hours for run in ours]
        found.append(
            GpuHours(
                pool,
                billed,
                month.by["item"].get(pool, 0.0),
                None if runs is None else sum(run.held_gpu_hours for run in ours),
                None if runs is None or None in trained else sum(each or 0.0 for each in trained),
            )
        )
    return found


def _run_costs(month: Month, hours: Sequence[GpuHours], runs: Sequence[RunHours]) -> list[RunCost]:
    """Return the cost of each run: of its own machines by their tag, else its share of its pool's nodes."""
    people = {run.run: run.owner for run in runs}
    tagged = month.by["run"]
    found = [RunCost(run, people.get(run, ""), "", None, cost, "tag") for run, cost in tagged.items()]
    pools = {each.pool: each for each in hours}
    for run in runs:
        pool = pools.get(run.pool)
        if run.run not in tagged and pool is not None and pool.billed:
            # The shares never exceed the bill, whatever the records say.
            all_held = max(pool.billed, pool.held or 0.0)
            cost = pool.cost * run.held_gpu_hours / all_held
            found.append(RunCost(run.run, run.owner, run.pool, run.held_gpu_hours, cost, "share"))
    return sorted(found, key=lambda each: (-each.cost, each.run))


def _owners(month: Month, runs: Sequence[RunCost], owners: Owners) -> list[tuple[str, float]]:
    """Return the cost by owner: runs are of who launched them, the rest of the owner in the tags."""
    table = dict(month.by["owner"])
    for run in runs:
        if run.owner and run.owner != owners.owner:
            table[run.owner] = table.get(run.owner, 0.0) + run.cost
            table[owners.owner] = table.get(owners.owner, 0.0) - run.cost
    return largest(table)


def _compared(month: Month, estimate: Bill, owners: Owners) -> list[Comparison]:
    """Return each item of bill and estimate, the largest on the bill first."""
    billed, hours = month.by["item"], month.covered_hours
    found: dict[str, list[BillItem]] = {name: [] for name in billed}
    for part in estimate.parts:
        found.setdefault(_item_of(part, owners), []).append(part)
    rows = []
    for name, parts in found.items():
        known = bool(parts) and all(part.usd_per_hour is not None for part in parts)
        least = sum(part.min_usd_per_hour or 0.0 for part in parts) * hours if known else None
        most = sum(part.max_usd_per_hour or 0.0 for part in parts) * hours if known else None
        if billed.get(name) or least or most:
            rows.append(Comparison(name, billed.get(name, 0.0), least, most))
    return sorted(rows, key=lambda row: (-row.billed, row.item))


def _item_of(part: BillItem, owners: Owners) -> str:
    """Return the item of the bill that a part of an estimate is compared with; a pool is its own item."""
    if pool := owners.pool_of(part.name):
        return pool
    for item in items():
        if any(
            part.name == each or (each.endswith("-") and part.name.startswith(each))
            for each in item.estimated
        ):
            return item.name
    return part.name


def _notes(totals: BillTotals, month: Month, owners: Owners, runs: Sequence[RunHours] | None) -> list[str]:
    notes = []
    if not month.ours:
        notes.append(
            f"No charge of {month.name} has the tag trainfleet:platform of this platform: activate the cost"
            " allocation tags (AWS), or export with labels or tags."
        )
    elif month.untagged:
        share = month.untagged / (month.untagged + month.ours + sum(month.others.values()))
        notes.append(
            f"{share:.0%} of the bill has no tag trainfleet:platform, and may be of this platform or of"
            " another: see the services."
        )
    if totals.currency != "USD":
        notes.append(
            f"The bill is in {totals.currency} and list prices are in USD: nothing is compared with the"
            " estimate or the budget."
        )
    gpus = [pool.name for pool in owners.pools.values() if pool.gpus and pool.name not in month.gpu_hours]
    if gpus and month.ours:
        notes.append(
            f"No GPU hours on the bill of {', '.join(gpus)}: not used, or the export lacks ConsumedQuantity,"
            " ConsumedUnit or a text with the machine (ChargeDescription, SkuPriceDetails)."
        )
    if runs is None and month.gpu_hours:
        notes.append("Idle GPU hours and costs by run need the records of the runs: --storage.")
    lost = [run.run for run in runs or () if not run.pool]
    if lost:
        notes.append(
            f"The pool of these runs is not known, and their hours are left out: {', '.join(lost[:8])}."
        )
    if any(OTHERS in table for table in month.by.values()):
        notes.append(f"Tables have at most 2,000 names; the rest is {OTHERS}.")
    return notes


def month_of(usd_per_hour: float) -> float:
    """Return the cost of a month of average length."""
    return usd_per_hour * HOURS_PER_MONTH
