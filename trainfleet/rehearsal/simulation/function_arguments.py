"""Checks the arguments of a function (`get_*`) against the types that the installed SDK declares."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trainfleet.rehearsal.simulation.check import Mistake, check_inputs
from trainfleet.rehearsal.simulation.schema import Kind, Property, ResourceType, kind_of

NOT_SENT = ("opts", "return")


class ArgumentsError(ValueError):
    """Raised for arguments of other types than the SDK declares; the message names each."""


def argument_mistakes(function: Callable[..., Any] | None, given: dict[str, Any]) -> list[Mistake]:
    """Return the mistakes in plain arguments, by their wire names; none for a function that is not known."""
    if function is None:
        return []
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):
        return []
    declared = {
        re.sub(r"_(\w)", lambda match: match.group(1).upper(), name): Property(
            _as_input(kind_of(hint)), type(None) not in typing.get_args(hint)
        )
        for name, hint in hints.items()
        if name not in NOT_SENT
    }
    return check_inputs(ResourceType("", declared, {}), _null_blocks_empty(given))


def _null_blocks_empty(value: Any) -> Any:
    """Replace null in lists of objects with an empty object: it lacks the same properties."""
    if isinstance(value, dict):
        return {name: _null_blocks_empty(item) for name, item in value.items()}
    if isinstance(value, list):
        blocks = all(item is None or isinstance(item, dict) for item in value)
        return [{} if blocks and item is None else _null_blocks_empty(item) for item in value]
    return value


def _as_input(kind: Kind) -> Kind:
    """Return a type without the classes of results, which some SDKs also accept as arguments."""
    if kind.name != "union":
        return replace(kind, item=_as_input(kind.item)) if kind.item else kind
    choices = [each for each in kind.choices if not getattr(each.cls, "_pulumi_output_type", False)]
    return choices[0] if len(choices) == 1 else replace(kind, choices=tuple(choices))
