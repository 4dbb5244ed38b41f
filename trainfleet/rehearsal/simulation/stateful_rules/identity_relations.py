"""Relations of identities: a role trusts the service that takes it, and nodes have an account that exists."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, plain
from trainfleet.rehearsal.simulation.stateful_rules.references import logical_name, strings_at

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]


def trusted(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return which role does not trust the service that takes it. Roles that the program does not create are
    not checked.
    """
    named = set(strings_at(plain(record.inputs), row["role"].split(".")))
    for other in others:
        if other.token != "aws:iam/role:Role" or plain(other.outputs).get("arn") not in named:
            continue
        allowed = _allowed(plain(other.inputs).get("assumeRolePolicy"), row["service"])
        missing = [] if allowed is None else [each for each in row["actions"] if each not in allowed]
        if missing:
            name = logical_name(other)
            return f"the trust policy of role {name} does not allow {row['service']} {' and '.join(missing)}"
    return ""


def default_account(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return that the nodes of an initial pool would have a service account which the program disables or
    deletes.
    """
    inputs = plain(record.inputs)
    if (inputs.get("nodeConfig") or {}).get("serviceAccount") or inputs.get("enableAutopilot"):
        return ""
    for other in others:
        action = str(plain(other.inputs).get("action"))
        if other.token == row["by"] and action in row["actions"]:
            name = logical_name(other)
            return f"its initial nodes have no service account, and {name} takes the default one ({action})"
    return ""


def _allowed(policy: Any, service: str) -> set[str] | None:
    """The actions that a trust policy allows a service; None if the policy is not known."""
    if not isinstance(policy, str) or UNKNOWN in policy:
        return None
    found: set[str] = set()
    name = re.escape(service.removesuffix(".amazonaws.com"))
    pattern = rf"\*|{name}\.([a-z0-9-]+\.)?amazonaws\.com(\.cn)?"  # also in one region, or in China
    for statement in _listed(json.loads(policy).get("Statement")):
        principal = statement.get("Principal")
        services = _listed(principal.get("Service")) if isinstance(principal, dict) else []
        if statement.get("Effect") == "Allow" and any(re.fullmatch(pattern, str(each)) for each in services):
            found |= set(_listed(statement.get("Action")))
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
