"""Selects the resources that a rehearsal fails, updates, replaces or edits behind the engine's back.

Pure functions over the plan and the engine's state. A selection is deterministic for a seed and prefers
resources with few dependents, whose effects are predictable.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        """The logical name of the resource."""
        return self.urn.rsplit("::", 1)[-1]

    @property
    def shown(self) -> str:
        """The resource and property, for display."""
        return f"{self.name} ({'.'.join(self.path)})"

    def as_change(self) -> dict[str, Any]:
        """Return the change in the format of `trainfleet/rehearsal/engine/program.py`."""
        return {"type": self.token, "name": self.name, "path": list(self.path), "value": self.value}


def is_real(token: str) -> bool:
    """Return whether a cloud creates resources of this type (no component, provider or stack)."""
    package = token.split(":", 1)[0]
    return package in packages() and not token.startswith("pulumi:")


def managed(steps: Iterable[Planned]) -> list[Planned]:
    """Return the planned resources that a cloud creates, in plan order."""
    return [
        step
        for step in steps
        if step.new is not None and step.op != "read" and step.new.get("custom") and is_real(step.token)
    ]


def model_of(token: str) -> CloudModel:
    """Return the model of the cloud that owns a type."""
    return CLOUD_MODELS.get(token.split(":", 1)[0]) or CloudModel()


def fault_target(steps: list[Planned], seed: int) -> str:
    """Return the URN whose create has to fail, from the middle third of the plan."""
    urns = [step.urn for step in steps]
    middle = urns[len(urns) // 3 : max(len(urns) // 3 + 1, 2 * len(urns) // 3)]
    return random.Random(seed).choice(middle)


def missing_rules(tokens: Iterable[str], rules: Mapping[str, Rule]) -> list[str]:
    """Return the types without an entry in the replacement table."""
    return sorted(
        {
            token
            for token in tokens
            if token not in rules
            and not model_of(token).knows_replacements(token)
            and is_real(token)
            and token in packages()[token.split(":", 1)[0]].classes
        }
    )


def dependents(resources: Sequence[Mapping[str, Any]], *urns: str) -> set[str]:
    """Return the direct and transitive dependents of resources, without these."""
    found: set[str] = set()
    wave = set(urns)
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
    return found - set(urns)


def _ordered(resources: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Return the resources that clouds created, those with the fewest dependents first."""
    made = [resource for resource in resources if _is_made(resource) and not resource.get("external")]
    shuffled = sorted(made, key=lambda resource: str(resource["urn"]))
    random.Random(seed).shuffle(shuffled)
    return sorted(shuffled, key=lambda resource: len(dependents(resources, resource["urn"])))


def updatable(resources: list[dict[str, Any]], rules: Mapping[str, Rule], seed: int) -> list[Choice]:
    """Return in-place changes (label, description or annotation), those with the fewest dependents first."""
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
"""Maximum dependents of a preferred replacement: more are hard to predict, and none exercises too little."""


def replaceable(resources: list[dict[str, Any]], rules: Mapping[str, Rule], seed: int) -> list[Choice]:
    """Return changes that force a replacement: a new physical name, else another immutable string.

    To exercise dependents, resources with at most `FOLLOWED` dependents come first (most first), then those
    with more (fewest first), then those without any.
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
    """Return another valid name. Azure names are short, often without hyphens: change the last character."""
    if token.startswith("azure-native:"):
        return value[:-1] + ("1" if value[-1] == "0" else "0")
    return f"{value}-2"


def _rank(followers: set[str], made: set[str]) -> tuple[int, int]:
    """Return the sort key of a replacement; a resource that a provider depends on (a cluster) comes last.

    Everything in a cluster is replaced with it.
    """
    count = len(followers & made)
    if any("pulumi:providers:" in urn for urn in followers):
        return (3, count)
    return (0, -count) if 1 <= count <= FOLLOWED else (1, count) if count else (2, 0)


def _is_made(resource: dict[str, Any]) -> bool:
    return bool(resource.get("custom")) and is_real(resource["type"])


def physical_name_path(resource: dict[str, Any]) -> tuple[str, ...]:
    """Return the path of a resource's physical name."""
    if resource["type"].startswith("kubernetes:") and "metadata" in (resource.get("inputs") or {}):
        return ("metadata", "name")
    return (model_of(resource["type"]).name_property(resource["type"]),)


def _forced(resource: dict[str, Any], path: tuple[str, ...], rule: Rule | None) -> bool:
    return model_of(resource["type"]).always_replaces(resource["type"], path) or (
        rule is not None and rule.forces(path)
    )


def _is_own_text(resource: dict[str, Any], path: tuple[str, ...]) -> bool:
    """Return whether a property is the program's own free text: not derived, no ID, no enum, not ignored."""
    if _ignored(resource, path) or (
        len(path) == 1 and (resource.get("propertyDependencies") or {}).get(path[0])
    ):
        return False
    return path[-1] not in ("region", "location", "zone", "project") and _is_free(resource["type"], path)


def _is_free(token: str, path: tuple[str, ...]) -> bool:
    """Return whether a property accepts any text: no enum, and no ID or ARN of another resource."""
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
