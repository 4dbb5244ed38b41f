"""The cost of both sides of a diff from their resources: what the base applied, and what the head plans.

The spec's estimate (`settings.bill_of`) is the cross-check: a note says where the two disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainfleet.infra.catalog.cost import HOURS_PER_MONTH, Bill
from trainfleet.infra.catalog.planned import UNKNOWN, Plan, Planned, bill_of_plan
from trainfleet.infra.catalog.usage import Usage
from trainfleet.infra.spec.stack_file import StackFile
from trainfleet.rehearsal.diff.settings import bill_of
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN as WIRE_UNKNOWN
from trainfleet.rehearsal.simulation.pulumi_values import is_secret, plain

AGREEMENT = 0.02
"""By how much an estimate from a spec may differ from its plan."""
_GONE = ("delete", "read-discard", "discard", "replace", "remove-pending-replace")
"""Steps after which the resource does not exist, or that only announce other steps."""
_STAYS = ("same", "update", "refresh")
Dependencies = Mapping[str, Mapping[str, tuple[str, ...]]]
"""By URN and input: the URNs of the resources that the input's value comes from."""


def dependencies(plan: Path) -> Dependencies:
    """Read from a saved plan (`pulumi preview --save-plan`) what each input depends on.

    Events do not say it, and a preview does not know the ids that would. Empty if there is no plan.
    """
    try:
        document = json.loads(plan.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    goals = {urn: each.get("goal") or {} for urn, each in (document.get("resourcePlans") or {}).items()}
    return {urn: _tuples(goal.get("propertyDependencies")) for urn, goal in goals.items()}


def applied_plan(resources: Iterable[Mapping[str, Any]]) -> Plan:
    """Return the resources of a state."""
    return Plan(
        tuple(
            _planned(each, _tuples(each.get("propertyDependencies")))
            for each in resources
            if each.get("custom") and not each.get("external") and not each.get("delete")
        )
    )


def previewed_plan(events: Iterable[Mapping[str, Any]], depends: Dependencies) -> Plan:
    """Return the resources that exist after the steps of a preview.

    A resource that stays keeps its id: the engine announces it without one. Others refer to it by the id.
    """
    after: dict[str, Planned] = {}
    for event in events:
        new = event.get("new")
        if new and event["op"] in _STAYS and not new.get("id"):
            new = {**new, "id": (event.get("old") or {}).get("id")}
        if new and new.get("custom") and not event["op"].startswith(_GONE) and event["op"] != "read":
            after[event["urn"]] = _planned(new, depends.get(event["urn"], {}))
    return Plan(tuple(after.values()))


def costs(
    plans: tuple[Plan | None, Plan | None],
    files: tuple[StackFile | None, StackFile | None],
    usage: Usage | None,
) -> tuple[tuple[Bill | None, Bill | None], list[str]]:
    """Return the cost of both sides, and notes on where a spec's estimate is used or disagrees.

    Args:
        plans: the resources of base and head; None where nothing was planned, so that the estimate is used.
        files: the stack files of base and head; None where the stack does not exist.
        usage: what is used, on both sides.
    """
    bills, notes = list[Bill | None](), list[str]()
    for side, plan, file in zip(("base", "head"), plans, files, strict=True):
        estimate, why = bill_of(file)
        planned = None if plan is None else bill_of_plan(plan, usage)
        bills.append(planned or estimate)
        if planned is None:
            notes += [f"{side}: {why}"] if why else []
        elif estimate is not None and estimate.parts:
            notes += [f"{side}: {each}" for each in disagreements(planned, estimate)]
    return (bills[0], bills[1]), notes


def disagreements(planned: Bill, estimate: Bill) -> list[str]:
    """Return in words where the estimate of a spec is more than AGREEMENT away from the plan."""
    found = []
    pairs = (
        ("always running", planned.min_usd_per_hour, estimate.min_usd_per_hour),
        ("with all pools at their largest", planned.max_usd_per_hour, estimate.max_usd_per_hour),
    )
    used = sum(part.min_usd_per_hour or 0 for part in planned.parts if not part.resources)
    for what, plan, spec in pairs:
        fixed = plan - used
        if abs(fixed - spec) > AGREEMENT * max(fixed, spec):
            found.append(
                f"the resources cost ${fixed * HOURS_PER_MONTH:,.0f} a month {what}, and the spec's estimate"
                f" is ${spec * HOURS_PER_MONTH:,.0f}: the program adds or leaves out something that the"
                " estimate does not know"
            )
    return found


def _planned(resource: Mapping[str, Any], depends: Mapping[str, tuple[str, ...]]) -> Planned:
    provider = str(resource.get("provider") or "").rpartition("::")[0]
    inputs = {key: _known(value) for key, value in (resource.get("inputs") or {}).items()}
    urn = resource["urn"]
    return Planned(
        resource["type"], urn.rsplit("::", 1)[-1], inputs, urn, resource.get("id") or "", provider, depends
    )


def _known(value: Any) -> Any:
    """Return a value without the engine's marks of secrets and unknown values."""
    if is_secret(value):
        value = plain(value)
    if isinstance(value, str):
        return UNKNOWN if value == WIRE_UNKNOWN else value
    if isinstance(value, dict):
        return {key: _known(each) for key, each in value.items() if not key.startswith("__")}
    return [_known(each) for each in value] if isinstance(value, list) else value


def _tuples(dependencies: Any) -> dict[str, tuple[str, ...]]:
    return {name: tuple(urns or ()) for name, urns in (dependencies or {}).items()}
