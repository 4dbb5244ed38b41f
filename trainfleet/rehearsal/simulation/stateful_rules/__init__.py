"""Rules of a cloud that depend on what else exists: resources in use, overlapping ranges, zones, and quotas.

The TOML files contain the rules, one file per provider, each row with its source. `cloud_refuses` checks one
operation against them.
"""

from __future__ import annotations

import functools
import ipaddress
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.refusal import Refusal
from trainfleet.rehearsal.simulation.stateful_rules.agreements import AGREEMENT_CHECKS, AGREEMENT_KINDS
from trainfleet.rehearsal.simulation.stateful_rules.kept_names import (
    KEPT_NAME_KINDS,
    keeps_name,
    name_kept,
)
from trainfleet.rehearsal.simulation.stateful_rules.namespaces import NAMESPACE_CHECKS, NAMESPACE_KINDS
from trainfleet.rehearsal.simulation.stateful_rules.node_agents import (
    critical_pods,
    resources_of_empty_pools,
)
from trainfleet.rehearsal.simulation.stateful_rules.references import (
    logical_name,
    names_of,
    strings_at,
    texts,
)
from trainfleet.rehearsal.simulation.stateful_rules.relations import RELATION_CHECKS, RELATION_KINDS
from trainfleet.rehearsal.simulation.stateful_rules.support import skewed, unsupported
from trainfleet.rehearsal.simulation.stateful_rules.upgrades import first_version, left_behind, wrong_step
from trainfleet.rehearsal.simulation.stateful_rules.zones import moved, zones_at

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

HERE = Path(__file__).parent
KINDS = {
    "in_use": {"type", "by", "source"},
    "inside": {"type", "ranges", "network", "of", "source"},
    "zones": {"type", "places", "of", "least", "source"},
    "same_zones": {"type", "places", "of", "source"},
}
KINDS |= {
    "quota": {"type", "most", "source"},
    "critical_pods": {"type", "at", "cluster", "classes", "except", "source"},
    "empty_pools": {
        "type",
        "at",
        "image",
        "pool",
        "scales",
        "least",
        "labels",
        "name",
        "tag",
        "slash",
        "source",
    },
}
KINDS |= {
    "supported": {"type", "property", "cloud", "source"},
    "skew": {"type", "property", "of", "by", "version", "most", "source"},
    "upgrade": {"type", "property", "what", "back", "say", "source"},
}
KINDS |= {**RELATION_KINDS, **AGREEMENT_KINDS, **NAMESPACE_KINDS, **KEPT_NAME_KINDS}
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Rows = dict[str, dict[str, list[dict[str, Any]]]]


@functools.cache
def rules() -> Rows:
    """Return the rows by kind and type."""
    found: Rows = {kind: {} for kind in KINDS}
    for file in sorted(HERE.glob("*.toml")):
        for kind, rows in tomllib.loads(file.read_text()).items():
            for row in rows:
                assert kind in KINDS, f"{file.name}: {kind} is not a kind of rule"
                assert KINDS[kind] <= set(row), (
                    f"{file.name} [{kind}] {row.get('type')} needs {', '.join(sorted(KINDS[kind]))}"
                )
                found[kind].setdefault(row["type"], []).append(row)
    return found


def cloud_refuses(
    verb: str, record: CloudObject, others: Iterable[CloudObject], quotas: Mapping[str, int]
) -> Refusal | None:
    """Return why a cloud refuses to create, update or delete a resource; None if it does not."""
    rest, before = [], None
    for other in others:
        if (other.token, other.id) != (record.token, record.id):
            rest.append(other)
        elif other is not record:
            before = other
    if verb == "delete":
        return _in_use(record, rest)
    return (
        _ranges(record, rest)
        or _zones(record, rest)
        or _agents(record, rest)
        or _skew(record, rest)
        or (_change(before, record, rest) if verb == "update" and before is not None else None)
        or (_version(record) or _quota(record, rest, quotas) if verb == "create" else None)
    )


def name_refused(record: CloudObject, deleted: Iterable[CloudObject]) -> Refusal | None:
    """Return why a new resource cannot have its name, which a deleted one had; None if it can."""
    return _first((row, name_kept(row, record, deleted)) for row in _rows("kept_name", record))


def _rows(kind: str, record: CloudObject) -> list[dict[str, Any]]:
    return rules()[kind].get(record.token, [])


def _first(found: Iterable[tuple[dict[str, Any], str]]) -> Refusal | None:
    """Return the first reason with the source of its row."""
    return next((Refusal(reason, row["source"]) for row, reason in found if reason), None)


def is_name_kept(record: CloudObject) -> bool:
    """Return whether a cloud keeps the name of a resource after its deletion, also in the same place."""
    rows = rules()["kept_name"].get(record.token, ())
    return any(keeps_name(row, record) for row in rows if "unless_same" not in row)


def _in_use(record: CloudObject, others: list[CloudObject]) -> Refusal | None:
    known = names_of(record)
    for row in rules()["in_use"].get(record.token, ()):
        if row.get("unless") and plain(record.inputs).get(row["unless"]):
            continue
        for user in row["by"]:
            token, path = user.split(" ")
            for other in others:
                if other.token == token and known & set(texts(other, path)):
                    what = f"{record.id} is still in use by {logical_name(other)} ({path})"
                    return Refusal(what, row["source"])
    return None


def _ranges(record: CloudObject, others: list[CloudObject]) -> Refusal | None:
    return _first((row, _outside(row, record, others)) for row in _rows("inside", record))


def _outside(row: dict[str, Any], record: CloudObject, others: list[CloudObject]) -> str:
    """Return which range is outside its network or overlaps another one; empty if none is."""
    own = [network for path in row["ranges"] for network in _networks(record, path)]
    token, path = row["network"].split(" ")
    home = next(
        (other for other in others if other.token == token and names_of(other) & set(texts(record, path))),
        None,
    )
    if home is None:
        return ""
    space = [network for each in row["of"] for network in _networks(home, each)]
    for extra in row.get("more", ()):
        kind, reference, what = extra.split(" ")
        space += [
            n
            for other in others
            if other.token == kind and names_of(home) & set(texts(other, reference))
            for n in _networks(other, what)
        ]
    for network in own:
        if space and not any(_is_inside(network, whole) for whole in space):
            return f"{network} is not inside {', '.join(map(str, space))} of {logical_name(home)}"
    for other in others:
        if other.token == record.token and names_of(home) & set(texts(other, path)):
            there = [network for each in row["ranges"] for network in _networks(other, each)]
            if clash := next(((a, b) for a in own for b in there if a.overlaps(b)), None):
                return f"{clash[0]} overlaps {clash[1]} of {logical_name(other)}"
    return ""


def _zones(record: CloudObject, others: list[CloudObject]) -> Refusal | None:
    for row in _rows("zones", record):
        zones = zones_at(row, record, others)
        if zones and len(zones) < row["least"]:
            what = f"{row['places']} must be in at least {row['least']} zones, and all are in"
            return Refusal(f"{what} {', '.join(sorted(zones))}", row["source"])
    return None


def _agents(record: CloudObject, others: list[CloudObject]) -> Refusal | None:
    checks = (
        ("critical_pods", critical_pods),
        ("empty_pools", resources_of_empty_pools),
        *RELATION_CHECKS.items(),
        *AGREEMENT_CHECKS.items(),
        *NAMESPACE_CHECKS.items(),
    )
    return _first((row, check(row, record, others)) for kind, check in checks for row in _rows(kind, record))


def _skew(record: CloudObject, others: list[CloudObject]) -> Refusal | None:
    for row in _rows("skew", record):
        named = set(texts(record, row["by"]))
        for other in others:
            if other.token == row["of"] and names_of(other) & named and (why := skewed(row, record, other)):
                return Refusal(why, row["source"])
    return None


def _change(before: CloudObject, record: CloudObject, others: list[CloudObject]) -> Refusal | None:
    moves = ((row, moved(row, before, record, others)) for row in _rows("same_zones", record))
    return _first(moves) or _upgrade(before, record, others)


def _upgrade(before: CloudObject, record: CloudObject, others: list[CloudObject]) -> Refusal | None:
    rows = _rows("upgrade", record)
    left = ((row, left_behind(record, [row], others)) for row in (skews() if rows else ()))
    return _first((row, wrong_step(row, before, record)) for row in rows) or _first(left)


def skews() -> list[dict[str, Any]]:
    """Return the rows on versions of nodes, of all types."""
    return [row for rows in rules()["skew"].values() for row in rows]


def version_of_nodes(record: CloudObject, others: Iterable[CloudObject]) -> str:
    """Return the Kubernetes version that the cloud gives to the nodes of a new resource; empty: none."""
    return first_version(record, skews(), list(others))


def _version(record: CloudObject) -> Refusal | None:
    return _first((row, unsupported(row, record)) for row in _rows("supported", record))


def _quota(record: CloudObject, others: list[CloudObject], quotas: Mapping[str, int]) -> Refusal | None:
    rows = _rows("quota", record)
    if record.token in quotas:
        most, source = quotas[record.token], "--quota"
    elif rows:
        most, source = int(rows[0]["most"]), str(rows[0]["source"])
    else:
        return None
    there = sum(other.token == record.token for other in others)
    if there < most:
        return None
    return Refusal(f"the quota is {most} of {record.token}, and {there} exist", source)


def _networks(record: CloudObject, path: str) -> list[Network]:
    found: list[Network] = []
    for text in strings_at(plain(record.inputs), path.split(".")):
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError:
            continue  # not a range; the input checks report it
    return found


def _is_inside(network: Network, whole: Network) -> bool:
    return network.version == whole.version and network.subnet_of(whole)  # type: ignore[arg-type]  # both versions are the same
