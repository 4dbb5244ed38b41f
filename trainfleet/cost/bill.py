"""Adds up a bill by platform, owner, pool, run, service and item, in memory that its rows do not grow.

What is whose follows from the tags that the platform sets on its resources (infra/tags.py), from those that
`ray up` sets on its machines, and from the node pool that a managed cluster writes on its nodes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from pathlib import Path

from trainfleet.cost.focus import Charge
from trainfleet.errors import InputError, Problem
from trainfleet.infra.catalog.cost import node_costs
from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import PlatformSpec

ITEMS = Path(__file__).with_name("items.toml")
MOST_KEYS = 2000
"""Names in one table. The costs of further ones are added up as OTHERS."""
OTHERS = "(others)"
NO_POOL = "(no pool)"
NO_OWNER = "(no owner)"
BASES = ("effective", "billed")
RUN_TAG = "trainfleet-run"
_NODE_POOL_TAGS = (
    "eks-nodegroup-name",
    "aws-eks-nodegroup-name",
    "goog-k8s-node-pool-name",
    "aks-managed-poolname",
)
"""Tags that managed clusters put on their nodes."""


@dataclass(frozen=True)
class Item:
    """A row of items.toml."""

    name: str
    estimated: tuple[str, ...]
    match: re.Pattern[str]


@cache
def items(file: Path = ITEMS) -> tuple[Item, ...]:
    """Return the rows of items.toml in order.

    Raises:
        InputError: the file is not TOML, or a row has other keys or a pattern that is wrong.
    """
    try:
        rows = tomllib.loads(file.read_text(encoding="utf-8"))["item"]
        return tuple(
            Item(row["name"], tuple(row["estimated"]), re.compile(row["match"], re.IGNORECASE))
            for row in rows
        )
    except (OSError, KeyError, tomllib.TOMLDecodeError, re.error) as error:
        raise InputError("the table of items cannot be read", [Problem(str(file), str(error))]) from error


@lru_cache(maxsize=65_536)
def item_of(service: str, text: str) -> str:
    """Return the item of a charge by its service and its text; the service's name if no row has it."""
    whole = f"{service}: {text}"
    return next((item.name for item in items() if item.match.search(whole)), service or "(no service)")


@dataclass(frozen=True)
class Pool:
    """A pool of the spec, for the charges of its nodes."""

    name: str
    machine: Machine

    @property
    def gpus(self) -> int:
        """GPUs of a node."""
        return self.machine.accelerators_per_node if self.machine.accelerator else 0


class Owners:
    """Tells whose a charge is, for one platform.

    Args:
        spec: the platform.
        stack: the stack's name.
    """

    def __init__(self, spec: PlatformSpec, stack: str) -> None:
        self.platform, self.stack, self.owner = _plain(spec.name), _plain(stack), spec.owner
        self.cloud = spec.cloud
        machines = {pool.name: pool.machine for pool in node_costs(spec).pools}
        self.pools: dict[str, Pool] = {}
        self._by_name: dict[str, str] = {}
        groups = {group.name: group for group in node_groups(spec)}
        for name, machine in machines.items():
            group = groups.get(name)
            pool = group.pool if group else name
            self.pools.setdefault(pool, Pool(pool, machine))
            for each in (name, *((group.family, pool) if group else ())):
                self._by_name[_plain(each)] = pool

    def pool_of(self, group: str) -> str | None:
        """The pool of a node group, or None. Nodes that no pool of the spec has are a pool of their own."""
        return self._by_name.get(_plain(group))

    def is_tagged(self, charge: Charge) -> bool:
        """Whether a charge says which platform it is of."""
        return bool(charge.tags.get("trainfleet-platform"))

    def is_ours(self, charge: Charge) -> bool:
        """Whether a charge is of this platform, and of this stack where it says so."""
        stack = charge.tags.get("trainfleet-stack")
        return _plain(charge.tags.get("trainfleet-platform", "")) == self.platform and (
            not stack or _plain(stack) == self.stack
        )

    def pool(self, charge: Charge) -> str:
        """The pool of the node that is charged, or of its disk; NO_POOL if there is none."""
        name = _plain(charge.tags.get("name", "")).removeprefix(f"{self.platform}-")
        found = self._by_name.get(name)
        for key in _NODE_POOL_TAGS:
            if found is None and (given := charge.tags.get(key)):
                found = self._by_name.get(_plain(given).removeprefix(f"{self.platform}-"))
        return found or NO_POOL

    def person(self, charge: Charge) -> str:
        """The owner in the tags. A label of Google Cloud that is the platform's owner is shown as written."""
        given = charge.tags.get("trainfleet-owner", "")
        return self.owner if given and _plain(given) == _plain(self.owner) else given or NO_OWNER

    def gpu_hours(self, charge: Charge, pool: str) -> float | None:
        """The GPU hours that a charge is for; None if it is for something else.

        Google Cloud bills GPUs by themselves, AWS and Azure the machine.
        """
        if charge.hours is None or charge.category != "Usage" or pool not in self.pools:
            return None
        of = self.pools[pool]
        text = charge.text.lower()
        if not of.gpus:
            return None
        if self.cloud == "gcp":
            return charge.hours if re.search(r"\bgpu\b|nvidia", text) else None
        if of.machine.instance_type.lower() in text or (
            self.cloud == "azure" and "virtual machine" in f"{charge.service} {text}".lower()
        ):
            return charge.hours * of.gpus
        return None


def _plain(text: str) -> str:
    """Return a tag's value as a label of Google Cloud would have it, to compare values of all clouds."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower().replace("@", "_at_").replace(".", "_"))[:63]


Table = dict[str, float]


@dataclass
class Month:
    """The charges of one month (UTC). Sums are in the currency of the bill."""

    name: str
    ours: float = 0.0
    billed: float = 0.0
    effective: float = 0.0
    usage: float = 0.0
    """The part that grows with time: usage and recurring purchases."""
    by: dict[str, Table] = field(
        default_factory=lambda: {name: {} for name in ("service", "owner", "pool", "run", "item", "category")}
    )
    gpu_hours: Table = field(default_factory=dict)
    """GPU hours by pool."""
    untagged: float = 0.0
    untagged_by: Table = field(default_factory=dict)
    """By service, of the whole bill: charges without the platform's tag."""
    others: Table = field(default_factory=dict)
    """By platform: charges of other platforms."""
    end: datetime | None = None
    """Until when the bill has charges of this platform."""

    @property
    def start(self) -> datetime:
        """The first moment of the month."""
        return datetime.fromisoformat(f"{self.name}-01").replace(tzinfo=UTC)

    @property
    def hours(self) -> float:
        """The hours of the whole month."""
        return (_next(self.start) - self.start).total_seconds() / 3600

    @property
    def covered_hours(self) -> float:
        """The hours from the month's start until the last charge."""
        if self.end is None:
            return 0.0
        return (min(self.end, _next(self.start)) - self.start).total_seconds() / 3600

    @property
    def forecast(self) -> float | None:
        """The cost of the whole month if usage continues as so far; None without charges."""
        if not self.covered_hours:
            return None
        return self.ours - self.usage + self.usage * self.hours / self.covered_hours


def _next(month: datetime) -> datetime:
    return (month + timedelta(days=32)).replace(day=1)


@dataclass
class BillTotals:
    """The sums of a bill by month."""

    basis: str
    currency: str = ""
    rows: int = 0
    months: dict[str, Month] = field(default_factory=dict)


def add_up(charges: Iterable[Charge], owners: Owners, basis: str = "effective") -> BillTotals:
    """Add up charges.

    Args:
        charges: the rows of the bill.
        owners: whose a charge is.
        basis: which cost is added up, one of BASES.

    Raises:
        InputError: the charges are in several currencies, or there are none.
    """
    totals = BillTotals(basis)
    for charge in charges:
        totals.rows += 1
        if charge.currency != (totals.currency or charge.currency):
            what = f"row {totals.rows} is in {charge.currency}, and those before in {totals.currency}"
            problem = Problem("BillingCurrency", what, "pass the bills of one currency")
            raise InputError("the bill has several currencies", [problem])
        totals.currency = charge.currency
        name = charge.start.strftime("%Y-%m")
        month = totals.months.setdefault(name, Month(name))
        _add_charge(month, charge, owners, charge.effective if basis == "effective" else charge.billed)
    if not totals.rows:
        problem = Problem("--bill", "has no charges", "export a month with usage")
        raise InputError("the bill is empty", [problem])
    return totals


def _add_charge(month: Month, charge: Charge, owners: Owners, cost: float) -> None:
    if not owners.is_tagged(charge):
        month.untagged += cost
        add(month.untagged_by, charge.service, cost)
        return
    if not owners.is_ours(charge):
        add(month.others, charge.tags["trainfleet-platform"], cost)
        return
    month.ours += cost
    month.billed += charge.billed
    month.effective += charge.effective
    month.usage += 0.0 if charge.one_time or charge.category != "Usage" else cost
    month.end = max(month.end or charge.end, charge.end)
    pool, item = owners.pool(charge), item_of(charge.service, charge.text)
    for name, key in (
        ("service", charge.service),
        ("owner", owners.person(charge)),
        ("pool", pool),
        ("category", charge.category),
        ("item", pool if item == "other nodes" and pool in owners.pools else item),
    ):
        add(month.by[name], key, cost)
    if run := charge.tags.get(RUN_TAG):
        add(month.by["run"], run, cost)
    if (hours := owners.gpu_hours(charge, pool)) is not None:
        add(month.gpu_hours, pool, hours)


def add(table: Table, key: str, value: float) -> None:
    """Add a value to a table of at most MOST_KEYS keys."""
    if key not in table and len(table) >= MOST_KEYS:
        key = OTHERS
    table[key] = table.get(key, 0.0) + value


def largest(table: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the rows of a table, the largest first."""
    return sorted(table.items(), key=lambda row: (-row[1], row[0]))
