"""Resources that refer to one another and must agree: in network, place, name and what they forbid.

A resource that the program does not make is unknown here, and what refers to it is not checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, plain
from trainfleet.rehearsal.simulation.stateful_rules.references import (
    logical_name,
    names_of,
    strings_at,
    texts,
)

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]
Others = list["CloudObject"]


def agree(row: Row, record: CloudObject, others: Others) -> str:
    """Return which two references lead to different networks or places.

    A side is `PATH`, or `PATH TYPE PROPERTY` for a property of what the path refers to, and so on through
    further resources. A name that several resources have may mean any of them.
    """
    sides = [
        (side.split(" ")[0], {_same(value, row["what"]): value for value in values})
        for side in row["sides"]
        for values in _side(side, record, others)
        if values
    ]
    for path, values in sides:
        for other_path, other_values in sides:
            if not values.keys() & other_values.keys():
                here, there = next(iter(values.values())), next(iter(other_values.values()))
                return f"{path} is in {row['what']} {here}, and {other_path} in {row['what']} {there}"
    return ""


def requires(row: Row, record: CloudObject, others: Others) -> str:
    """Return what must exist before the resource, if what it refers to is of the program.

    `by` has alternatives: a type, the path by which it refers to the same thing, and a path with one of the
    values that it must have.
    """
    if "unless" in row and _value(record, row["unless"].split(" ")[0]) == row["unless"].split(" ")[1]:
        return ""
    targets = {value for values in _side(row["to"], record, others) for value in values}
    known = {name for other in others if (names := names_of(other)) & targets for name in names}
    if not known:
        return ""
    for each in row["by"]:
        token, reference, *condition = each.split(" ")
        for other in others:
            if other.token != token or not known & {*texts(other, reference), *_itself(other, reference)}:
                continue
            if not condition or _value(other, condition[0]) in condition[1].split("|"):
                return ""
    return str(row["needs"])


def forbidden(row: Row, record: CloudObject, others: Others) -> str:
    """Return that a setting of what the resource refers to forbids it."""
    if "when" in row:
        path, allowed = row["when"].split(" ")
        if not set(texts(record, path)) & set(allowed.split("|")):
            return ""
    path, token = row["of"].split(" ")
    names = set(texts(record, path))
    for other in others:
        if other.token != token or not names & names_of(other):
            continue
        setting, value = row["setting"].split(" ")
        if _value(other, setting) == value:
            return f"{setting} of {logical_name(other)} is {value}, which forbids {row['what']}"
    return ""


def public_policy(row: Row, record: CloudObject, others: Others) -> str:
    """Return that a bucket policy is public while the bucket blocks public policies, as new buckets do."""
    document = _document(plain(record.inputs).get("policy"))
    if document is None or not any(_is_public(each) for each in _listed(document.get("Statement"))):
        return ""
    names = set(texts(record, "bucket"))
    if not any(names & names_of(other) for other in others if other.token in row["buckets"]):
        return ""
    blocks = [
        plain(other.inputs)
        for other in others
        if other.token == row["block"] and names & {*texts(other, "bucket")}
    ]
    if not blocks or any(block.get("blockPublicPolicy") for block in blocks):
        return "the policy is public, and its bucket blocks public policies (the default of new buckets)"
    return ""


def named_in(row: Row, record: CloudObject, others: Others) -> str:
    """Return that a name is not below the name of the zone that it is in."""
    path, token, zone_name = row["zone"].split(" ")
    zones = set(texts(record, path))
    for other in others:
        if other.token != token or not zones & names_of(other):
            continue
        for name in texts(record, row["name"]):
            for zone in strings_at(plain(other.inputs), [zone_name]):
                inner, outer = name.rstrip(".").lower(), zone.rstrip(".").lower()
                if inner != outer and not inner.endswith(f".{outer}"):
                    return f"{name} is not in zone {zone} of {logical_name(other)}"
    return ""


def _side(side: str, record: CloudObject, others: Others) -> Iterator[set[str]]:
    """For each value at the path, the values that it leads to; see `agree`."""
    path, *through = side.split(" ")
    for value in dict.fromkeys(texts(record, path)):
        found = {value}
        for token, what in zip(through[::2], through[1::2], strict=True):
            named = [other for other in others if other.token == token and found & names_of(other)]
            found = {each for other in named for each in strings_at(plain(other.inputs), what.split("."))}
        yield found


def _same(value: str, what: str) -> str:
    """A form in which equal networks, regions and locations are equal."""
    if what == "location" and (found := re.search(r"/locations/([^/]+)", value)):
        value = found[1]
    last = value.rstrip("/").rpartition("/")[2].lower().replace(" ", "")
    if what in ("region", "location"):
        last = re.sub(r"(?<=\d)-?[a-f]$", "", last)
        return "eu" if last == "europe" else last
    return last


def _itself(other: CloudObject, reference: str) -> set[str]:
    return names_of(other) if reference == "." else set()


def _value(record: CloudObject, path: str) -> str:
    value: Any = plain(record.inputs)
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _document(policy: Any) -> dict[str, Any] | None:
    """A policy document, or None if it is not known or not a document; other checks report the latter."""
    if isinstance(policy, str) and UNKNOWN not in policy:
        try:
            policy = json.loads(policy)
        except ValueError:
            return None
    return policy if isinstance(policy, dict) else None


def _listed(value: Any) -> list[dict[str, Any]]:
    found = value if isinstance(value, list) else [value]
    return [each for each in found if isinstance(each, dict)]


def _services(principal: Any) -> list[Any]:
    if not isinstance(principal, dict):
        return [principal]
    found = [principal.get("Service"), principal.get("AWS")]
    return [each for value in found for each in (value if isinstance(value, list) else [value])]


def _is_public(statement: dict[str, Any]) -> bool:
    """Whether a statement allows anybody something without a condition."""
    principal = statement.get("Principal")
    anybody = principal == "*" or (isinstance(principal, dict) and "*" in _services(principal))
    return statement.get("Effect") == "Allow" and anybody and not statement.get("Condition")


AGREEMENT_KINDS: Mapping[str, set[str]] = {
    "agree": {"type", "sides", "what", "source"},
    "requires": {"type", "to", "by", "needs", "source"},
    "forbidden": {"type", "of", "setting", "what", "source"},
    "public_policy": {"type", "buckets", "block", "source"},
    "named_in": {"type", "name", "zone", "source"},
}
AGREEMENT_CHECKS: Mapping[str, Callable[[Row, CloudObject, Others], str]] = {
    "agree": agree,
    "requires": requires,
    "forbidden": forbidden,
    "public_policy": public_policy,
    "named_in": named_in,
}
