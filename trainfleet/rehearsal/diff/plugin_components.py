"""Components that a plugin builds (awsx, eks): what a diff says of them, and what of an export is in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainfleet.rehearsal.diff.helm.chart import TOKENS
from trainfleet.rehearsal.simulation.schema import is_plugin_component

Resource = Mapping[str, Any]


def component_notes(events: Iterable[Resource]) -> list[str]:
    """Return the note that names the components whose resources are not compared; charts have another one."""
    found = [each["new"] | {"type": each["type"]} for each in events if each.get("new")]
    found = [each for each in found if each["type"] not in TOKENS and is_plugin_component(each)]
    urns = {each["urn"] for each in found}
    outer = [each for each in found if each.get("parent") not in urns]
    names = sorted({f"{each['urn'].rsplit('::', 1)[-1]} ({each['type']})" for each in outer})
    if not names:
        return []
    return [
        f"Built by plugins, which a diff does not run: {', '.join(names)}. The resources in them are not"
        " compared, priced or checked by policies."
    ]


def contents(resources: Iterable[Resource]) -> set[str]:
    """Return the URNs of the resources in components that a plugin builds, without the providers among them
    that other resources use.

    Args:
        resources: parents come before their children.
    """
    resources = list(resources)
    inside: set[str] = set()
    components: set[str] = set()
    for each in resources:
        if each.get("parent") in inside | components:
            inside.add(each["urn"])
        if is_plugin_component(each):
            components.add(each["urn"])
    others = (each for each in resources if each["urn"] not in inside)
    return inside - {str(each.get("provider") or "").rpartition("::")[0] for each in others}
