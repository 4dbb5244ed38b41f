"""Chooses what a rehearsal does to a program: where it breaks an apply, what it updates, replaces and lets
drift.

Pure functions over the plan and the engine's state. A choice is deterministic for a seed, and prefers a
resource on which little depends, so that what follows can be foreseen.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trainfleet.rehearsal.engine.engine_cli import Planned
from trainfleet.rehearsal.simulation.cloud_model import CloudModel
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
from trainfleet.rehearsal.simulation.pulumi_values import SIGNATURE, UNKNOWN
from trainfleet.rehearsal.simulation.replacement import Rule
from trainfleet.rehearsal.simulation.schema import packages

LABEL = "rehearsal"


@dataclass(frozen=True)
class Choice:
    """A change to one property of one resource."""

    urn: str
    token: str
    path: tuple[str, ...]
    value: Any

    @property
    def name(self) -> str:
        """The resource's logical name."""
        return self.urn.rsplit("::", 1)[-1]

    @property
    def shown(self) -> str:
        """The resource and the property, for a person."""
        return f"{self.name} ({'.'.join(self.path)})"

    def as_change(self) -> dict[str, Any]:
        """Return what `trainfleet/rehearsal/engine/program.py` reads."""
        return {"type": self.token, "name": self.name, "path": list(self.path), "value": self.value}


def is_real(token: str) -> bool:
    """Return whether a type is made by a cloud (not a component, a provider or the stack)."""
    package = token.split(":", 1)[0]
    return package in packages() and not token.startswith("pulumi:")


def managed(steps: Iterable[Planned]) -> list[Planned]:
    """Return the planned resources that a cloud makes, in the order of the plan."""
    return [step for step in steps if step.new is not None and step.new.get("custom") and is_real(step.token)]


def model_of(token: str) -> CloudModel:
    """Return the model of the cloud that a type belongs to."""
    return CLOUD_MODELS.get(token.split(":", 1)[0]) or CloudModel()


def fault_target(steps: list[Planned], seed: int) -> str:
    """Return the URN whose create shall fail: somewhere in the middle third of the plan."""
    urns = [step.urn for step in steps]
    middle = urns[len(urns) // 3 : max(len(urns) // 3 + 1, 2 * len(urns) // 3)]
    return random.Random(seed).choice(middle)


def missing_rules(tokens: Iterable[str], rules: dict[str, Rule]) -> list[str]:
    """Return the types for which the replacement table has no entry."""
    return sorted(
        {
            token
            for token in tokens
            if token not in rules and is_real(token) and token in packages()[token.split(":", 1)[0]].classes
        }
    )


def dependents(resources: list[dict[str, Any]], urn: str) -> set[str]:
    """Return everything that depends on a resource, directly or not."""
    found: set[str] = set()
    wave = {urn}
    while wave:
        wave = {
            resource["urn"]
            for resource in resources
            if resource["urn"] not in found
            and (
                wave & {*resource.get("dependencies", ()), resource.get("parent", "")}
                or str(resource.get("provider", "")).rsplit("::", 1)[0] in wave
            )
        }
        found |= wave
    return found - {urn}


def _ordered(resources: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Return what clouds made, the least followed by others first."""
    made = [resource for resource in resources if _is_made(resource) and not resource.get("external")]
    shuffled = sorted(made, key=lambda resource: str(resource["urn"]))
    random.Random(seed).shuffle(shuffled)
    return sorted(shuffled, key=lambda resource: len(dependents(resources, resource["urn"])))


def updatable(resources: list[dict[str, Any]], rules: dict[str, Rule], seed: int) -> list[Choice]:
    """Return changes that happen in place, the least followed by others first: a new label, description or
    annotation.
    """
    found = []
    for resource in _ordered(resources, seed):
        token, rule = resource["type"], rules.get(resource["type"])
        for path, value in _ways_to_update(resource):
            if not _ignored(resource, path) and not (rule and rule.forces(path)):
                found.append(Choice(resource["urn"], token, path, value))
                break
    return found


def _ways_to_update(resource: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    token, inputs = resource["type"], resource.get("inputs") or {}
    labels = model_of(token).drift_path(token)
    if _is_map(_at(inputs, labels)):
        yield (*labels, LABEL), "changed"
    if isinstance(inputs.get("description"), str):
        yield ("description",), "rehearsed"
    if token.startswith("kubernetes:") and _is_map(inputs.get("metadata")):
        yield ("metadata", "annotations", LABEL), "changed"


FOLLOWED = 5
"""A replacement that more resources follow is hard to foresee; one that none follows shows little."""


def replaceable(resources: list[dict[str, Any]], rules: dict[str, Rule], seed: int) -> list[Choice]:
    """Return changes that replace a resource: a new physical name, else another text that the table says
    replaces it.

    First those on which a few others depend (at most `FOLLOWED`, the most first), then those on which more
    do, the fewest
    first, so that the rehearsal sees how dependents follow; last those on which nothing does.
    """
    found: list[tuple[tuple[int, int], Choice]] = []
    made = {resource["urn"] for resource in resources if _is_made(resource)}
    for resource in _ordered(resources, seed):
        if resource.get("protect") or resource.get("retainOnDelete"):
            continue
        inputs, rule = resource.get("inputs") or {}, rules.get(resource["type"])
        name = physical_name_path(resource)
        for path in (
            name,
            *(path for path in (rule.replace if rule else ()) if len(path) == 1 and path != name),
        ):
            value = _at(inputs, path)
            if (
                isinstance(value, str)
                and value not in ("", UNKNOWN)
                and _forced(resource, path, rule)
                and _is_own_text(resource, path)
            ):
                found.append(
                    (
                        _rank(dependents(resources, resource["urn"]), made),
                        Choice(resource["urn"], resource["type"], path, _other(resource["type"], value)),
                    )
                )
                break
    return [choice for _, choice in sorted(found, key=lambda pair: pair[0])]


def _other(token: str, value: str) -> str:
    """Return another text that is as good a name; many of Azure's are short and take no hyphen, so only the
    last character changes there.
    """
    if token.startswith("azure-native:"):
        return value[:-1] + ("1" if value[-1] == "0" else "0")
    return f"{value}-2"


def _rank(followers: set[str], made: set[str]) -> tuple[int, int]:
    """Return how late a replacement is to be chosen. What a provider depends on (a cluster) comes last: all
    that is in it goes with it.
    """
    count = len(followers & made)
    if any("pulumi:providers:" in urn for urn in followers):
        return (3, count)
    return (0, -count) if 1 <= count <= FOLLOWED else (1, count) if count else (2, 0)


def _is_made(resource: dict[str, Any]) -> bool:
    return bool(resource.get("custom")) and is_real(resource["type"])


def physical_name_path(resource: dict[str, Any]) -> tuple[str, ...]:
    """Return where a resource's physical name is."""
    if resource["type"].startswith("kubernetes:") and "metadata" in (resource.get("inputs") or {}):
        return ("metadata", "name")
    return (model_of(resource["type"]).name_property(resource["type"]),)


def _forced(resource: dict[str, Any], path: tuple[str, ...], rule: Rule | None) -> bool:
    return model_of(resource["type"]).always_replaces(resource["type"], path) or (
        rule is not None and rule.forces(path)
    )


def _is_own_text(resource: dict[str, Any], path: tuple[str, ...]) -> bool:
    """Return whether a property is the program's own free text: not another resource's value, no id, no enum,
    not ignored.
    """
    if _ignored(resource, path) or (
        len(path) == 1 and (resource.get("propertyDependencies") or {}).get(path[0])
    ):
        return False
    return path[-1] not in ("region", "location", "zone", "project") and _is_free(resource["type"], path)


def _is_free(token: str, path: tuple[str, ...]) -> bool:
    """Return whether a property takes any text: no enum, and no id or ARN of another resource."""
    if path[-1].endswith(("Id", "Arn", "Policy", "Cidr", "Block", "Zone", "policy")):
        return False
    package = packages()[token.split(":", 1)[0]]
    resource = package.resource(token)
    declared = resource.inputs.get(path[0]) if resource else None
    return declared is None or len(path) > 1 or (declared.kind.name == "string" and not declared.documented)


def _ignored(resource: dict[str, Any], path: tuple[str, ...]) -> bool:
    return any(
        str(ignored).split(".")[0].split("[")[0] in (path[0], "*")
        for ignored in resource.get("ignoreChanges") or ()
    )


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) and SIGNATURE not in value else None
    return value


def _is_map(value: Any) -> bool:
    return isinstance(value, dict) and SIGNATURE not in value
