"""The cost of planned resources, of any Pulumi program: prices a plan or a state by types and inputs.

Each cloud says in infra/<cloud>/costs.py how a type is billed (`CHARGES`) and which type is a budget
(`BUDGETS`), and in infra/<cloud>/billed_types.toml which types are free and which by use. A type in
none is reported as not known. Prices are the rows of prices.toml and the machines of the catalogue.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from trainfleet.infra.catalog.cost import Bill, BillItem, machine_item, priced
from trainfleet.infra.catalog.machines import CLOUDS_FOLDER, Machine, catalogue
from trainfleet.infra.catalog.regions import at
from trainfleet.infra.catalog.usage import Usage
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.schema import Capacity

UNKNOWN = "[known after apply]"
"""The value of an input that only an apply knows."""
FOLDERS = {"aws": "aws", "gcp": "gcp", "azure-native": "azure", "kubernetes": "kubernetes"}
"""Package of a resource type to the folder with its `costs.py` and `billed_types.toml`."""
FREE_PACKAGES = frozenset({"pulumi", "random", "tls", "command", "time", "std", "cloudinit", "archive"})
"""Packages whose resources exist in no cloud, or only in the state."""
_VERSION = re.compile(r"^azure-native(?::(\w+)/v\d+\w*|_\w+_v\d+\w*:(\w+)(?:/v\d+\w*)?):")


class QuantityUnknown(Exception):  # noqa: N818 - not an error: the quantity is known later
    """Raised by a charge if a quantity is only known after the apply. The message names the property."""


@dataclass(frozen=True)
class Planned:
    """A planned resource: inputs as the program gives them, with UNKNOWN for what only an apply knows."""

    type: str
    name: str
    inputs: Mapping[str, Any]
    urn: str = ""
    id: str = ""
    provider: str = ""
    """URN of its provider, which states the region."""
    depends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Input to the URNs of the resources that its value comes from."""

    @property
    def kind(self) -> str:
        """The type without an API version."""
        return _VERSION.sub(lambda found: f"azure-native:{found[1] or found[2]}:", self.type)

    def get(self, path: str, default: Any = None) -> Any:
        """Return the input at a dotted path; `default` if it is missing or None.

        Raises:
            QuantityUnknown: the value is only known after the apply.
        """
        value: Any = self.inputs
        for part in path.split("."):
            if isinstance(value, list):
                value = value[0] if value else None
            value = value.get(part) if isinstance(value, Mapping) else None
            if value == UNKNOWN:
                raise QuantityUnknown(path)
        return default if value is None else value

    def number(self, path: str, default: float = 0) -> float:
        """Return the input at a dotted path as a number.

        Raises:
            QuantityUnknown: the value is only known after the apply, or is not a number.
        """
        try:
            return float(self.get(path, default))
        except (TypeError, ValueError):
            raise QuantityUnknown(path) from None

    def items(self, path: str) -> list[Mapping[str, Any]]:
        """Return the objects at a dotted path, which may be one object or a list."""
        value = self.get(path, [])
        return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, Mapping)]

    def inner(self, part: Mapping[str, Any]) -> Planned:
        """Return a part of the inputs with the same methods."""
        return replace(self, inputs=part)


@dataclass(frozen=True)
class Charge:
    """A row of prices.toml and how many units of it a resource has, in the row's unit."""

    row: str
    least: float
    most: float
    name: str = ""
    """The line of the bill; empty = the row's, where equal charges are added up."""


@dataclass(frozen=True)
class Nodes:
    """Machines: an instance type and how many of it a resource has."""

    name: str
    instance_type: str
    least: float
    most: float
    spot: bool = False
    accelerators: float | None = None
    """GPUs that a node attaches, where the instance type does not include them."""


@dataclass(frozen=True)
class Plan:
    """The resources of a plan or a state."""

    resources: tuple[Planned, ...]

    @cached_property
    def by_urn(self) -> dict[str, Planned]:
        """The resources by URN."""
        return {each.urn: each for each in self.resources if each.urn}

    @cached_property
    def by_id(self) -> dict[str, Planned]:
        """The resources by the id that the cloud gave them."""
        return {each.id: each for each in self.resources if each.id and each.id != UNKNOWN}

    def linked(self, resource: Planned, name: str, *paths: str) -> Planned | None:
        """Return the resource of which an input states the id: by the engine's dependencies, else by the id.

        Args:
            resource: the resource with the input.
            name: the input, by which the engine lists dependencies.
            paths: dotted paths at which the id can be.
        """
        for urn in resource.depends.get(name, ()):
            if urn in self.by_urn:
                return self.by_urn[urn]
        for path in paths:
            try:
                identity = resource.get(path)
            except QuantityUnknown:
                continue
            if isinstance(identity, str) and identity in self.by_id:
                return self.by_id[identity]
        return None

    def region(self, resource: Planned) -> str:
        """Return where a resource runs: by its inputs, its provider, else the region of the others."""
        own = _region(resource)
        provider = self.by_urn.get(resource.provider)
        return (
            own or (_region(provider) if provider else "") or self._usual_region.get(_package(resource), "")
        )

    @cached_property
    def _usual_region(self) -> dict[str, str]:
        found: dict[str, dict[str, int]] = {}
        for resource in self.resources:
            if region := _region(resource):
                counts = found.setdefault(_package(resource), {})
                counts[region] = counts.get(region, 0) + 1
        return {package: max(counts, key=lambda name: counts[name]) for package, counts in found.items()}

    @cached_property
    def cloud(self) -> Cloud | None:
        """The cloud of the first resource that belongs to one: where a cluster's load balancers are."""
        clouds = {package: folder for package, folder in FOLDERS.items() if package != "kubernetes"}
        found = (clouds[package] for package in map(_package, self.resources) if package in clouds)
        return next(map(Cloud, found), None)


Charges = Callable[[Planned, Plan], Iterable["Charge | Nodes"]]


def one(row: str) -> Charges:
    """Return the charge of a resource that is one unit of a row of prices.toml."""
    return lambda _resource, _plan: [Charge(row, 1, 1)]


def bill_of_plan(plan: Plan, usage: Usage | None = None) -> Bill:
    """Return the cost of a plan. A resource with a quantity that is not known yet has no price."""
    lines = _Lines(plan)
    used: dict[str, tuple[Cloud, str]] = {}
    not_known: dict[str, None] = {}
    budget: float | None = None
    for resource in plan.resources:
        package, kind = _package(resource), resource.kind
        if package in FREE_PACKAGES:
            continue
        if package not in FOLDERS:
            not_known[kind] = None
            continue
        table, module = billed_types(FOLDERS[package]), _costs(FOLDERS[package])
        cloud = plan.cloud if package == "kubernetes" else Cloud(FOLDERS[package])
        if (charges := module.CHARGES.get(kind)) is not None and cloud is not None:
            lines.add(resource, cloud, charges)
        if (limit := module.BUDGETS.get(kind)) is not None and (amount := _amount(limit, resource)):
            budget = (budget or 0) + amount
        if cloud is not None:
            for row in table.usage.get(kind, ()):
                used.setdefault(row, (cloud, plan.region(resource)))
        if not (charges or limit or kind in table.usage or table.is_free(kind)):
            not_known[kind] = None
    by_usage, unused = lines.add_usage(usage or Usage(), used)
    return Bill(
        tuple(lines.items()),
        planned=True,
        not_known=tuple(not_known),
        by_usage=by_usage,
        unused_usage=unused,
        budget_usd_per_month=budget,
    )


class _Lines:
    """The lines of a bill, in the order in which they are first seen; nodes first."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lines: dict[str, BillItem] = {}

    def add(self, resource: Planned, cloud: Cloud, charges: Charges) -> None:
        region = self.plan.region(resource)
        try:
            for charge in charges(resource, self.plan):
                self._add(resource, _item(charge, cloud, region))
        except QuantityUnknown as unknown:
            what = f"{resource.kind}: {unknown} is known after the apply"
            self._add(resource, BillItem(resource.name, what, 1, 1, None, region=region))

    def add_usage(
        self, usage: Usage, used: Mapping[str, tuple[Cloud, str]]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Add what is used; return what is used without an assumption, and assumptions that nothing uses."""
        by_usage, unused = [], []
        for row, (name, quantity) in usage.quantities().items():
            if row not in used:
                unused += [name] if quantity else []
                continue
            cloud, region = used[row]
            item = priced(cloud, row, quantity, quantity, region)
            if quantity:
                self.lines[row] = item
            else:
                by_usage.append(item.what)
        known = usage.quantities()
        by_usage += [row for row in used if row not in known]
        return tuple(by_usage), tuple(unused)

    def items(self) -> Iterator[BillItem]:
        yield from (each for each in self.lines.values() if each.resources)
        yield from (each for each in self.lines.values() if not each.resources)

    def _add(self, resource: Planned, item: BillItem) -> None:
        if not item.most:
            return
        name = item.name
        if (same := self.lines.get(name)) and (same.region, same.what) != (item.region, item.what):
            name = f"{item.name} ({item.region or resource.name})"
        old = self.lines.get(name)
        self.lines[name] = replace(
            item,
            name=name,
            least=item.least + (old.least if old else 0),
            most=item.most + (old.most if old else 0),
            resources=tuple(sorted({*(old.resources if old else ()), resource.name})),
        )


def _item(charge: Charge | Nodes, cloud: Cloud, region: str) -> BillItem:
    if isinstance(charge, Charge):
        return priced(cloud, charge.row, charge.least, charge.most, region, name=charge.name)
    capacity = Capacity.SPOT if charge.spot else Capacity.ON_DEMAND
    machine = machine_named(cloud, charge.instance_type)
    if machine is None or charge.accelerators not in (None, machine.accelerators_per_node):
        spot = " (spot)" if charge.spot else ""
        what = f"{charge.instance_type}{spot}"
        return BillItem(charge.name, what, charge.least, charge.most, None, region=region)
    return machine_item(
        charge.name, at(machine, region, capacity), charge.least, charge.most, capacity, region
    )


def machine_named(cloud: Cloud, instance_type: str) -> Machine | None:
    """Return a machine of the catalogue by its instance type."""
    return _machines().get((cloud, instance_type))


@cache
def _machines() -> dict[tuple[Cloud, str], Machine]:
    return {(machine.cloud, machine.instance_type): machine for machine in catalogue()}


@dataclass(frozen=True)
class BilledTypes:
    """The billed_types.toml of one cloud."""

    free: frozenset[str]
    free_modules: tuple[str, ...]
    """Beginnings of types that are all free, for example `aws:iam/`."""
    usage: Mapping[str, tuple[str, ...]]
    """Type to the rows of prices.toml by which its use is billed, or what is billed if there is no row."""

    def is_free(self, kind: str) -> bool:
        """Whether a type costs nothing."""
        return kind in self.free or kind.startswith(self.free_modules)


@cache
def billed_types(folder: str) -> BilledTypes:
    """Read the billed_types.toml of a folder of infra/ once per process."""
    document = tomllib.loads(types_file(folder).read_text(encoding="utf-8"))
    usage: dict[str, tuple[str, ...]] = {}
    for row, kinds in document["usage"].items():
        for kind in kinds:
            usage[kind] = (*usage.get(kind, ()), row)
    return BilledTypes(frozenset(document["free"]), tuple(document.get("free_modules", ())), usage)


def types_file(folder: str) -> Path:
    """The file that lists what is free and what is billed by use."""
    return CLOUDS_FOLDER / folder / "billed_types.toml"


@cache
def _costs(folder: str) -> Any:
    return import_module(f"trainfleet.infra.{folder}.costs")


def _amount(limit: Callable[[Planned], float], resource: Planned) -> float:
    try:
        return limit(resource)
    except QuantityUnknown:
        return 0


def _package(resource: Planned) -> str:
    return resource.kind.partition(":")[0]


_REGION_INPUTS = ("region", "location", "zone", "availabilityZone")


def _region(resource: Planned) -> str:
    """Return the region in a resource's inputs. A zone becomes its region."""
    for name in _REGION_INPUTS:
        value = resource.inputs.get(name)
        if isinstance(value, str) and value and value != UNKNOWN and value.lower() != "global":
            plain = value.lower().replace(" ", "") if resource.type.startswith("azure") else value
            if resource.type.startswith("gcp:"):
                return re.sub(r"-[a-z]$", "", plain)
            return re.sub(r"(?<=\d)[a-z]$", "", plain) if name == "availabilityZone" else plain
    return ""
