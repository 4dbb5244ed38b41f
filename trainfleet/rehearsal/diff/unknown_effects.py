"""The changed properties of an update whose effect no rule knows: the provider may replace instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainfleet.rehearsal.diff.helm.chart import TOKENS as CHARTS
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.replacement import Effect, effect, effects, split_path
from trainfleet.rehearsal.simulation.schema import packages
from trainfleet.rehearsal.steps.selection import is_real, model_of


def may_replace(token: str, event: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the changed properties of an update event whose effect is unknown, as property paths.

    Any input of a component that a plugin builds may replace what is in it; the objects of a chart are
    compared themselves. Other components, providers and custom kinds of Kubernetes have none:
    pulumi-kubernetes replaces an object of a custom kind only if its kind, name or namespace changes
    (provider/pkg/provider/diff.go).
    """
    if not is_real(token) or _is_custom_kind(token) or token in CHARTS:
        return ()
    old, new = (plain((event.get(side) or {}).get("inputs") or {}) for side in ("old", "new"))
    if packages()[token.partition(":")[0]].is_component(token):
        return tuple(name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name))
    known = effects(token, old, new)
    found = []
    for text in event.get("detailedDiff") or event.get("diffs") or ():
        path = split_path(text)
        below = [each for place, each in known.items() if place[: len(path)] == path]
        # A secret has the same mask on both sides, so that its leaf is not among the differences.
        seen = below or [effect(token, path, 0, 1)]
        unsure = Effect.UNKNOWN in seen and not model_of(token).always_replaces(token, path)
        if unsure and not path[0].startswith("__"):
            found.append(path[0])
    return tuple(dict.fromkeys(found))


def _is_custom_kind(token: str) -> bool:
    return token.startswith("kubernetes:") and token not in packages()["kubernetes"].classes
