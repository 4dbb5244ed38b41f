"""Roles before their use: one is assigned on what a resource uses, and has effect by then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.stateful_rules.references import logical_name, strings_at

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]
IDENTITY = "azure-native:managedidentity:UserAssignedIdentity"


def granted(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return which resource is used without a role on it or above it, or `below` it (a key of a vault), or
    with one that is not in effect yet.

    A program that assigns no roles is not checked: its identities may have theirs from elsewhere.
    """
    roles = [each for each in others if each.token == row["by"]]
    for used in _used(row, record, others) if roles else ():
        covering = [each for each in roles if _covers(row, _scope(each), used)]
        if not covering:
            return f"no role is assigned on {row['reference']} {used}, so {row['type']} may not use it"
        if late := _late(row, record, covering, others):
            return (
                f"the role {logical_name(late)} on {row['reference']} {used} may take {row['minutes']}"
                f" minutes until it has effect, and {row['type']} checks it once: wait between them"
            )
    return ""


def _used(row: Row, record: CloudObject, others: list[CloudObject]) -> list[str]:
    """The ids at the reference. `through` names the resources that have its values in an output; with `own`,
    only resources of the program count.
    """
    values = {each.lower() for each in strings_at(plain(record.inputs), row["reference"].split("."))}
    if "through" in row:
        token, path = row["through"].split(" ")
        values = {
            other.id.lower()
            for other in others
            if other.token == token
            and values & {each.lower() for each in strings_at(plain(other.outputs), path.split("."))}
        }
    if row.get("own"):
        values &= {other.id.lower() for other in others}
    return sorted(each for each in values if each.startswith("/"))


def _scope(role: CloudObject) -> str:
    return str(plain(role.inputs).get("scope")).lower().rstrip("/") + "/"


def _covers(row: Row, scope: str, used: str) -> bool:
    used = used.rstrip("/") + "/"
    return used.startswith(scope) or (row.get("below", False) and scope.startswith(used))


def _late(
    row: Row, record: CloudObject, covering: list[CloudObject], others: list[CloudObject]
) -> CloudObject | None:
    """A role of the resource's own identity that is too young; if none is known to be its own, one of them if
    all are.
    """
    seconds = row.get("minutes", 0) * 60
    young = [each for each in covering if each.age is not None and each.age < seconds]
    own = _principals(record, others)
    mine = [each for each in covering if plain(each.inputs).get("principalId") in own]
    if mine:
        return next((each for each in young if each in mine), None)
    return young[0] if young and len(young) == len(covering) else None


def _principals(record: CloudObject, others: list[CloudObject]) -> set[str]:
    """The principals of a resource's identities that the program creates."""
    identity = plain(record.inputs).get("identity") or {}
    ids = set(identity.get("userAssignedIdentities") or ()) if isinstance(identity, dict) else set()
    return {
        str(plain(each.outputs).get("principalId"))
        for each in others
        if each.token == IDENTITY and each.id in ids
    }
