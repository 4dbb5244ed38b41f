"""Reads grants from IAM policy documents of AWS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trainfleet.rehearsal.diff.grants.model import LATER, Grant, Index, Kind, listed
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN

_ANYONE = "anyone"


def grants_of(document: Any, index: Index, *, who: str = "", on: str = "") -> Iterator[Grant]:
    """Yield the grants of a policy document, one for each principal, action and resource.

    Args:
        document: the document as text or as data; unknown if it depends on an unknown value.
        index: the resources that identifiers may mean.
        who: the holder, of a policy that belongs to a role, user or group; else the principals are read.
        on: the resource, of a policy that belongs to one; statements about other resources name these.
    """
    holder, target = who or "somebody", on or "something"
    if document is None:
        return
    if document == UNKNOWN or (isinstance(document, str) and UNKNOWN in document and not _is_json(document)):
        yield Grant(Kind.UNRESOLVED, holder, LATER, target)
        return
    try:
        parsed = json.loads(document) if isinstance(document, str) else document
        statements = [one for one in listed(parsed["Statement"]) if isinstance(one, dict)]
    except (ValueError, KeyError, TypeError):
        yield Grant(Kind.UNRESOLVED, holder, "the document cannot be read", target)
        return
    for statement in statements:
        yield from _statement(statement, index, who, on)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _statement(statement: dict[str, Any], index: Index, who: str, on: str) -> Iterator[Grant]:
    kind = Kind.DENY if statement.get("Effect") == "Deny" else Kind.ALLOW
    condition = statement.get("Condition")
    text = "" if not condition else json.dumps(condition, sort_keys=True).replace(UNKNOWN, LATER)
    grant = Grant(kind, "", "", "", text)
    for holder in [who] if who else _principals(statement, index):
        for action in _actions(statement):
            for target in _targets(statement, index, on):
                yield replace(grant, who=holder, what=action, on=target)


def _actions(statement: dict[str, Any]) -> list[str]:
    if "NotAction" in statement:
        return [f"every action except {', '.join(map(_shown, listed(statement['NotAction'])))}"]
    return [_shown(action) for action in listed(statement.get("Action"))]


def _targets(statement: dict[str, Any], index: Index, on: str) -> list[str]:
    if "NotResource" in statement:
        return [
            f"everything except {', '.join(index.shown(one) for one in listed(statement['NotResource']))}"
        ]
    found = [
        on if on and one == "*" else "every resource" if one == "*" else index.shown(one)
        for one in listed(statement.get("Resource"))
    ]
    return list(dict.fromkeys(found)) or [on or "every resource"]


def _principals(statement: dict[str, Any], index: Index) -> list[str]:
    if "NotPrincipal" in statement:
        return [f"anyone except {json.dumps(statement['NotPrincipal'], sort_keys=True)}"]
    principal = statement.get("Principal", "*")
    if not isinstance(principal, dict):
        return [_principal("AWS", one, index) for one in listed(principal)]
    return [_principal(kind, one, index) for kind, all_of in principal.items() for one in listed(all_of)]


def _principal(kind: str, value: Any, index: Index) -> str:
    if value == "*":
        return _ANYONE
    if kind == "Service":
        return f"service {_shown(value)}"
    if kind == "Federated":
        return index.shown(value, "identity provider")
    text = index.shown(value)
    parts = text.split(":")
    return f"account {parts[4]}" if len(parts) == 6 and parts[5] == "root" else text


def _shown(value: Any) -> str:
    return str(value).replace(UNKNOWN, LATER)
