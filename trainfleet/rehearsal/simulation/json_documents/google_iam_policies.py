"""Checks Google IAM policies: bindings of roles and members.

Source: IAM API reference, Policy, Binding, AuditConfig.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainfleet.rehearsal.simulation.json_documents.findings import Finding, dicts, unknown_keys
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN

_MEMBER = re.compile(
    r"allUsers|allAuthenticatedUsers|(?:user|serviceAccount|group):[^\s:@]+@[^\s@]+|serviceAccount:[^\s]+\.svc\.id\.goog\[[^\s/\]]+/[^\s/\]]+\]"
    r"|domain:[^\s@]+\.[^\s@]+|(?:projectOwner|projectEditor|projectViewer):[^\s]+|deleted:[^\s]+|(?:principal|principalSet|principalHierarchy)://[^\s]+"
)
_ROLE = re.compile(r"roles/[A-Za-z0-9_.]+|(?:projects|organizations)/[^/\s]+/roles/[A-Za-z0-9_.]+")


def bindings(value: Any) -> Iterator[Finding]:
    """Check a policy."""
    if not isinstance(value, dict):
        yield "", "is not a JSON object", "a policy is {'bindings': [{'role': ..., 'members': [...]}]}"
        return
    yield from unknown_keys("", value, ("bindings", "auditConfigs", "etag", "version"))
    if value.get("version") not in (None, 0, 1, 3, UNKNOWN):
        yield "version", f"{value['version']!r} is not one of the values", "0, 1 or 3"
    if "bindings" in value and not isinstance(value["bindings"], list) and value["bindings"] != UNKNOWN:
        yield "bindings", f"must be a list, not {value['bindings']!r}", ""
    for index, binding in enumerate(dicts(value.get("bindings"))):
        where = f"bindings[{index}]"
        yield from unknown_keys(where, binding, ("role", "members", "condition"))
        role, members = binding.get("role"), binding.get("members")
        if role is None:
            yield f"{where}.role", "missing", "a role is like roles/viewer"
        elif not (isinstance(role, str) and (UNKNOWN in role or _ROLE.fullmatch(role))):
            yield (
                f"{where}.role",
                f"{role!r} is not a role",
                "a role is like roles/viewer or projects/P/roles/NAME",
            )
        if members is not None and not isinstance(members, list) and members != UNKNOWN:
            yield f"{where}.members", f"must be a list, not {members!r}", ""
        for number, member in enumerate(members if isinstance(members, list) else ()):
            if not (isinstance(member, str) and (UNKNOWN in member or _MEMBER.fullmatch(member))):
                yield (
                    f"{where}.members[{number}]",
                    f"{member!r} is not a member",
                    "a member is like user:name@example.com or serviceAccount:...",
                )
        condition = binding.get("condition")
        if isinstance(condition, dict):
            yield from unknown_keys(
                f"{where}.condition", condition, ("title", "description", "expression", "location")
            )
            yield from (
                (f"{where}.condition.{name}", "missing", "")
                for name in ("title", "expression")
                if not condition.get(name)
            )
