"""Checks a resource's inputs against the SDK: unknown names, missing inputs, wrong types, and enum values.

Values that are not known yet are not checked. A string that spells a number or a boolean is valid where the
provider converts it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainfleet.rehearsal.simulation.docstrings import Documented
from trainfleet.rehearsal.simulation.facts import NO_FACT, Fact
from trainfleet.rehearsal.simulation.json_schema import violations
from trainfleet.rehearsal.simulation.pulumi_values import SIGNATURE, UNKNOWN, masked
from trainfleet.rehearsal.simulation.schema import Kind, Property, ResourceType, inputs_of
from trainfleet.suggestions import did_you_mean, nearest

TYPES, DOCUMENTATION = "the SDK's types", "the SDK's documentation"
VALIDATION = "the validation of the Kubernetes API (pkg/apis/*/validation)"


@dataclass(frozen=True)
class Mistake:
    """One mistake in a resource's inputs: the property's path, what is wrong, and how to fix it."""

    path: str
    what: str
    fix: str = ""
    documented: bool = False
    """Whether a `soft` rule may discard it, because only documentation or an API model forbids the value."""
    source: str = ""
    """What forbids it: the SDK's types, its documentation, an API model with its version, or a rule."""
    open: bool = False
    """Whether the known values are a catalogue that grows, so that it is only a warning."""

    @property
    def fix_with_source(self) -> str:
        """The fix with the source."""
        return "; ".join(filter(None, (self.fix, self.source and f"source: {self.source}")))

    @property
    def with_source(self) -> str:
        """The mistake with its source."""
        return f"{self} [{self.source}]" if self.source else str(self)

    @property
    def property(self) -> str:
        """The path without list indexes and map keys."""
        return re.sub(r"\[[^\]]*\]", "", self.path)

    def __str__(self) -> str:
        return f"{self.path}: {self.what}" + (f" ({self.fix})" if self.fix else "")


def sourced(mistakes: Iterable[Mistake], source: str) -> list[Mistake]:
    """Return the mistakes, with this source where they have none."""
    return [mistake if mistake.source else replace(mistake, source=source) for mistake in mistakes]


def at_path(value: Any, path: str) -> Any:
    """Return the value at a mistake's path in plain inputs, or None."""
    for quoted, index, name in re.findall(r'\["([^"]+)"\]|\[(\d+)\]|([^.\[\]]+)', path):
        if isinstance(value, list) and index and int(index) < len(value):
            value = value[int(index)]
        else:
            value = value.get(quoted or name) if isinstance(value, dict) else None
    return value


def check_inputs(resource: ResourceType, inputs: dict[str, Any], *, strict: bool = False) -> list[Mistake]:
    """Return every mistake in a resource's plain inputs (see `pulumi_values.plain`).

    `strict` rejects a string that spells a number.
    """
    return sourced(_Check(strict).object("", inputs, resource.inputs), TYPES)


def check_object(path: str, value: Any, cls: type, *, strict: bool = False) -> list[Mistake]:
    """Return every mistake in a plain value that should be a `cls` (an SDK input class)."""
    found = _Check(strict).value(path, value, Property(Kind("object", cls=cls), required=True))
    return sourced(found, TYPES)


@dataclass(frozen=True)
class _Check:
    """One comparison of a value with its declared type.

    A bridged provider converts "3" to 3 and 3 to "3"; the APIs of Kubernetes and Azure do not (`strict`).
    """

    strict: bool

    def object(self, path: str, value: dict[str, Any], properties: dict[str, Property]) -> Iterator[Mistake]:
        prefix = f"{path}." if path else ""
        for name, item in value.items():
            if name.startswith("__"):
                continue
            if name not in properties:
                yield Mistake(f"{prefix}{name}", "unknown property", did_you_mean(name, properties))
            elif item is not None:
                yield from self.value(f"{prefix}{name}", item, properties[name])
        present = {name for name, item in value.items() if item is not None}
        for name, declared in properties.items():
            if declared.required and name not in present:
                yield Mistake(f"{prefix}{name}", "missing required property")

    def value(self, path: str, value: Any, declared: Property) -> Iterator[Mistake]:
        kind = declared.kind
        if (
            value == UNKNOWN
            or value is None
            or kind.name in ("any", "resource")
            or (isinstance(value, dict) and SIGNATURE in value)
        ):
            return
        if kind.name == "union":
            found = [list(self.value(path, value, replace(declared, kind=choice))) for choice in kind.choices]
            if all(found):
                yield from min(found, key=lambda mistakes: ("must be" in str(mistakes[0]), len(mistakes)))
        elif kind.name == "list":
            if not isinstance(value, list):
                yield _wrong(path, value, "a list")
                return
            yield from _limited(path, value, declared.fact)
            docs = Documented(declared.docs.values, declared.docs.closed, declared.docs.mentioned)
            item = Property(kind.item or Kind("any"), required=True, docs=docs, fact=declared.fact)
            for index, entry in enumerate(value):
                yield from self.value(f"{path}[{index}]", entry, item)
        elif kind.name in ("map", "object"):
            yield from self.mapping(path, value, kind, declared.fact)
        else:
            yield from self.scalar(path, value, declared)

    def mapping(self, path: str, value: Any, kind: Kind, fact: Fact = NO_FACT) -> Iterator[Mistake]:
        if not isinstance(value, dict):
            yield _wrong(path, value, "a map" if kind.name == "map" else "an object")
            return
        yield from _limited(path, value, fact)
        if kind.cls is not None:
            yield from self.object(path, value, inputs_of(kind.cls))
        else:
            quantities = path.rsplit(".", 1)[-1] in _QUANTITIES
            for key, entry in value.items():
                if not (quantities and isinstance(entry, (int, float)) and not isinstance(entry, bool)):
                    yield from self.value(
                        f'{path}["{key}"]', entry, Property(kind.item or Kind("any"), required=True)
                    )

    def scalar(self, path: str, value: Any, declared: Property) -> Iterator[Mistake]:
        kind = declared.kind
        if isinstance(value, (dict, list)):
            yield _wrong(path, value, f"a {_PLAIN.get(kind.name, kind.name)}")
        elif kind.name == "enum":
            yield from list(_by_fact(path, value, declared)) or _enum(path, value, declared)
        elif kind.name == "string":
            if isinstance(value, bool) or (self.strict and isinstance(value, (int, float))):
                yield _wrong(path, value, "a string")
            else:
                yield from list(_by_fact(path, value, declared)) or _text(path, str(value), declared)
        elif kind.name == "boolean":
            if not isinstance(value, bool) and (self.strict or value not in ("true", "false")):
                yield _wrong(path, value, "true or false")
        elif not _is_number(value, whole=kind.name == "integer") or (self.strict and isinstance(value, str)):
            yield _wrong(path, value, "a whole number" if kind.name == "integer" else "a number")
        else:
            yield from list(_by_fact(path, value, declared)) or _number(path, value, declared.docs)


_QUANTITIES = frozenset(
    {
        "limits",
        "requests",
        "capacity",
        "allocatable",
        "hard",
        "default",
        "defaultRequest",
        "max",
        "min",
        "overhead",
        "maxLimitRequestRatio",
        "podFixed",
    }
)
"""Maps of Kubernetes quantities, whose values may also be numbers (apimachinery, Quantity.UnmarshalJSON)."""


def _enum(path: str, value: Any, declared: Property) -> Iterator[Mistake]:
    known = [str(choice) for choice in declared.kind.values]
    also = declared.fact.schema.get("enum", ())
    if str(value) in (*known, *declared.docs.values, *declared.docs.mentioned, *also):
        return
    near = nearest(str(value), known) if len(known) <= _FEW else _respelt(str(value), known)
    # An open enum rejects only a value that is almost identical to a known one: two valid names may share a
    # prefix.
    if declared.kind.closed or (near and _similar(str(value), near)):
        yield Mistake(
            path, f"{value!r} is not one of the values", did_you_mean(str(value), known), documented=True
        )


_MACHINES = re.compile(
    r"(?i)(instance|machine|node|vm|ami|image|os|cpu|gpu|accelerator)_?-?(types?|sizes?|sku|family|classes)$|vmSize$"
    r"|platform$|version$|runtimes?$|engine$"
)
_LARGE = 60


def is_catalogue(path: str, values: Iterable[str]) -> bool:
    """Return whether a cloud adds values without a new API version: machines, images, versions, long sets."""
    name = re.sub(r"\[[^\]]*\]", "", path).rsplit(".", 1)[-1]
    return len(tuple(values)) > _LARGE or _MACHINES.search(name) is not None


def _respelt(value: str, known: Iterable[str]) -> str | None:
    """Return the known value that differs only in case and punctuation."""
    return next((choice for choice in known if _bare(choice) == _bare(value)), None)


def _bare(value: str) -> str:
    return re.sub(r"[^a-z0-9]", "", value.lower())


def _similar(value: str, near: str) -> bool:
    return (
        _bare(value) == _bare(near)
        or difflib.SequenceMatcher(None, value.lower(), near.lower()).ratio() >= _ALL_BUT
    )


_FEW = 30
_ALL_BUT = 0.8


def _by_fact(path: str, value: Any, declared: Property) -> Iterator[Mistake]:
    """Yield what the API's model rejects, except values that the SDK or its documentation names."""
    fact, text = declared.fact, str(value)
    quoted = {*map(str, declared.kind.values), *declared.docs.values, *declared.docs.mentioned}
    if not fact.schema or text == "" or text in quoted or UNKNOWN in text:
        return
    values = fact.schema.get("enum", ())
    if values and not _among(text, values, quoted):
        # Of a catalogue (p7.48xlarge, p5.48xlarge), only another spelling of a known value is surely wrong.
        grows = is_catalogue(path, values) and _respelt(text, values) is None
        yield Mistake(
            path,
            f"{_shortened(text)} is not one of the {len(values)} values known when the source was read"
            if grows
            else f"{_shortened(text)} is not one of the values that the API takes",
            did_you_mean(text, values),
            documented=True,
            source=fact.source,
            open=grows,
        )
    elif not values:
        yield from _limited(path, value, fact)


def _limited(path: str, value: Any, fact: Fact) -> Iterator[Mistake]:
    for what, fix in violations(value, fact.schema):
        yield Mistake(path, what, fix, documented=True, source=fact.source)


def _among(text: str, values: Collection[str], quoted: set[str]) -> bool:
    """Return whether the API has this value.

    Case is ignored if the documentation spells one of the values in a different case.
    """
    if text in values:
        return True
    lower = {value.lower() for value in values}
    return text.lower() in lower and any(word.lower() in lower and word not in values for word in quoted)


def _text(path: str, value: str, declared: Property) -> Iterator[Mistake]:
    docs = declared.docs
    if (
        docs.values
        and value
        and value not in declared.fact.schema.get("enum", ())
        and value not in docs.values
        and value not in docs.mentioned
        and (docs.closed or nearest(value, docs.values) is not None or _respelt(value, docs.values))
    ):
        yield Mistake(
            path,
            f"{value!r} is not one of the documented values",
            did_you_mean(value, docs.values),
            documented=True,
            source=DOCUMENTATION,
        )
    yield from _documented(path, value, docs)


def _number(path: str, value: Any, docs: Documented) -> Iterator[Mistake]:
    number = float(value)
    shown = str(int(number)) if number.is_integer() else str(value)
    if docs.values and docs.closed and shown not in docs.values and shown not in docs.mentioned:
        yield Mistake(
            path,
            f"{shown} is not one of the documented values",
            f"known: {', '.join(docs.values)}",
            documented=True,
            source=DOCUMENTATION,
        )
    elif shown not in docs.mentioned:
        yield from _documented(path, value, docs)


def _documented(path: str, value: Any, docs: Documented) -> Iterator[Mistake]:
    for what, fix in violations(value, docs.schema):
        yield Mistake(path, what, fix, documented=True, source=DOCUMENTATION)


def _shortened(value: str) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


_PLAIN = {"integer": "whole number", "enum": "string"}


def _is_number(value: Any, *, whole: bool) -> bool:
    if isinstance(value, bool):
        return False
    try:
        number = float(value)
    except (TypeError, ValueError):
        return False
    return number.is_integer() if whole else True


def _wrong(path: str, value: Any, expected: str) -> Mistake:
    shown = repr(masked(value))
    return Mistake(path, f"must be {expected}, not {shown if len(shown) <= 60 else shown[:57] + '...'}")
