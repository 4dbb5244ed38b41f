"""Checks a resource's inputs against the SDK: unknown names, missing ones, wrong types, values outside an enum.

Used by the simulated providers in Check, so that a mistake is refused with the resource's name before anything is made.
Values that are not known yet are not judged. Text that spells a number or a boolean is accepted where the SDK converts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rehearsal.clouds.schema import Kind, Property, ResourceType, inputs_of
from rehearsal.clouds.wire import SIGNATURE, UNKNOWN, masked
from trainfleet.nearest import did_you_mean, nearest


@dataclass(frozen=True)
class Mistake:
    """One mistake in a resource's inputs: the property's path, what is wrong and what would be right."""

    path: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.what}" + (f" ({self.fix})" if self.fix else "")


def check_inputs(resource: ResourceType, inputs: dict[str, Any]) -> list[Mistake]:
    """Return every mistake in plain inputs (see `wire.plain`) of a resource."""
    return list(_object("", inputs, resource.inputs))


def check_object(path: str, value: Any, cls: type) -> list[Mistake]:
    """Return every mistake in a plain value that should be a `cls` (an SDK input class)."""
    return list(_value(path, value, Property(Kind("object", cls=cls), required=True)))


def _object(path: str, value: dict[str, Any], properties: dict[str, Property]) -> Iterator[Mistake]:
    prefix = f"{path}." if path else ""
    for name, item in value.items():
        if name.startswith("__"):
            continue
        if name not in properties:
            yield Mistake(f"{prefix}{name}", "unknown property", did_you_mean(name, properties))
        elif item is not None:
            yield from _value(f"{prefix}{name}", item, properties[name])
    present = {name for name, item in value.items() if item is not None}
    for name, declared in properties.items():
        if declared.required and name not in present:
            yield Mistake(f"{prefix}{name}", "missing required property")


def _value(path: str, value: Any, declared: Property) -> Iterator[Mistake]:
    kind = declared.kind
    if value == UNKNOWN or value is None or kind.name == "any" or (isinstance(value, dict) and SIGNATURE in value):
        return
    if kind.name == "union":
        found = [list(_value(path, value, Property(choice, required=True))) for choice in kind.choices]
        if all(found):
            yield min(found, key=len)[0]
    elif kind.name == "list":
        if not isinstance(value, list):
            yield _wrong(path, value, "a list")
            return
        item = Property(kind.item or Kind("any"), required=True, documented=declared.documented, mentioned=declared.mentioned)
        for index, entry in enumerate(value):
            yield from _value(f"{path}[{index}]", entry, item)
    elif kind.name in ("map", "object"):
        if not isinstance(value, dict):
            yield _wrong(path, value, "a map" if kind.name == "map" else "an object")
        elif kind.cls is not None:
            yield from _object(path, value, inputs_of(kind.cls))
        else:
            for key, entry in value.items():
                yield from _value(f'{path}["{key}"]', entry, Property(kind.item or Kind("any"), required=True))
    else:
        yield from _scalar(path, value, declared)


def _scalar(path: str, value: Any, declared: Property) -> Iterator[Mistake]:
    kind = declared.kind
    if isinstance(value, (dict, list)):
        yield _wrong(path, value, f"{_ARTICLE.get(kind.name, 'a')} {kind.name}")
    elif kind.name == "enum":
        known = [str(choice) for choice in kind.values]
        if str(value) not in known and (kind.closed or nearest(str(value), known)):
            yield Mistake(path, f"{value!r} is not one of the values", did_you_mean(str(value), known))
    elif kind.name == "string":
        if isinstance(value, bool):
            yield _wrong(path, value, "a string")
        elif _looks_misspelt(str(value), declared):
            yield Mistake(path, f"{value!r} is not one of the documented values", did_you_mean(str(value), declared.documented))
    elif kind.name == "boolean":
        if not isinstance(value, bool) and value not in ("true", "false"):
            yield _wrong(path, value, "true or false")
    elif not _is_number(value, whole=kind.name == "integer"):
        yield _wrong(path, value, "a whole number" if kind.name == "integer" else "a number")


def _looks_misspelt(value: str, declared: Property) -> bool:
    """Say whether a value is almost, and not quite, a documented one. Documentation lags behind clouds, so others pass."""
    return (
        bool(declared.documented)
        and value not in declared.documented
        and value not in declared.mentioned
        and nearest(value, declared.documented) is not None
    )


_ARTICLE = {"integer": "an", "enum": "an"}


def _is_number(value: Any, *, whole: bool) -> bool:
    if isinstance(value, bool):
        return False
    try:
        number = float(value)
    except (TypeError, ValueError):
        return False
    return number.is_integer() if whole else True


def _wrong(path: str, value: Any, wanted: str) -> Mistake:
    shown = repr(masked(value))
    return Mistake(path, f"must be {wanted}, not {shown if len(shown) <= 60 else shown[:57] + '...'}")
