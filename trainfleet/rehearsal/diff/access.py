"""Access in words: who can do or reach what after a change that could not before, and the other way round.

Pure functions over the resources before and after. The same grant through another resource is not a change,
and neither is one that a wider grant covered before.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from trainfleet.rehearsal.diff.grants import aws, azure, gcp, kubernetes
from trainfleet.rehearsal.diff.grants.federation import EXCHANGE
from trainfleet.rehearsal.diff.grants.model import Grant, Index, Kind, Planned
from trainfleet.rehearsal.simulation.pulumi_values import plain

_CLOUDS = {
    "aws": aws.grants,
    "gcp": gcp.grants,
    "azure-native": azure.grants,
    "kubernetes": kubernetes.grants,
}
_READ = re.compile(
    r"^(get|list|describe|head|batchget|query|scan|select|watch|lookup|search|view|read)", re.I
)
_USE = re.compile(r"^(encrypt|decrypt|reencrypt|generatedatakey|generatemac|sign|verify)", re.I)
_ASSUME = ("sts:assumerole", "sts:tagsession", "sts:setsourceidentity", EXCHANGE)
_GONE = {"delete", "delete-replaced", "discard", "discard-replaced", "read-discard"}
_STAYS = {"same", "update", "refresh", "read"}
_MOST = 8


@dataclass(frozen=True)
class AccessChange:
    """Access that is gained or lost, or that is unknown before the apply."""

    change: str
    """`gained`, `lost`, `limited` and `unlimited` for blocks and denials, or `unresolved`."""
    who: str
    what: tuple[str, ...]
    """Actions, a role, or ports."""
    on: str
    condition: str
    text: str
    """The sentence that is shown."""
    resources: tuple[str, ...]
    """The names of the resources that grant it, or did."""


def planned_before(resources: Iterable[Mapping[str, Any]]) -> list[Planned]:
    """Return the resources of a state."""
    return [_planned(resource) for resource in resources if not resource.get("delete")]


def planned_after(events: Iterable[Mapping[str, Any]], before: Iterable[Planned] = ()) -> list[Planned]:
    """Return the resources that a preview leaves, from the metadata of its resource events.

    A resource that stays keeps its id and what the cloud computed: a preview does not repeat them.
    """
    known = {resource.urn: resource for resource in before}
    found: dict[str, Planned] = {}
    for event in events:
        if event.get("new") and event["op"] not in _GONE:
            planned, old = _planned(event["new"]), known.get(event["urn"])
            if old is not None and event["op"] in _STAYS:
                planned = replace(
                    planned, outputs={**old.outputs, **planned.outputs}, id=planned.id or old.id
                )
            found[event["urn"]] = planned
    return list(found.values())


def _planned(resource: Mapping[str, Any]) -> Planned:
    inputs, outputs = resource.get("inputs") or {}, resource.get("outputs") or {}
    return Planned(
        resource["type"], resource["urn"], plain(inputs), plain(outputs), str(resource.get("id") or "")
    )


def grants_of(resources: Iterable[Planned]) -> list[Grant]:
    """Return what resources allow together."""
    index = Index(resources)
    return [
        replace(grant, source=resource.urn)
        for resource in index.resources
        if (read := _CLOUDS.get(resource.token.partition(":")[0])) is not None
        for grant in read(resource, index)
    ]


def access_changes(before: Iterable[Planned], after: Iterable[Planned]) -> list[AccessChange]:
    """Return the changes of access: gained first, then lost, then what is not known yet."""
    old, new = grants_of(before), grants_of(after)
    open_sources = {grant.source for grant in new if grant.kind is Kind.UNRESOLVED}
    gained = [grant for grant in new if grant.kind is not Kind.UNRESOLVED and not _covered(grant, old)]
    lost = [
        grant
        for grant in old
        if grant.kind is not Kind.UNRESOLVED and grant.source not in open_sources and not _covered(grant, new)
    ]
    known = {grant for grant in old if grant.kind is Kind.UNRESOLVED}
    later = [grant for grant in new if grant.kind is Kind.UNRESOLVED and grant not in known]
    return [*_sentences(gained, gained=True), *_sentences(lost, gained=False), *_later(later)]


def _covered(grant: Grant, others: Iterable[Grant]) -> bool:
    return any(_covers(other, grant) for other in others)


def _covers(wide: Grant, grant: Grant) -> bool:
    if wide.kind is not grant.kind or wide.condition not in ("", grant.condition):
        return False
    if wide.kind in (Kind.DENY, Kind.BLOCK) and wide.condition != grant.condition:
        return False
    if grant.kind in (Kind.INGRESS, Kind.EGRESS):
        return (
            wide.on == grant.on and _ports_cover(wide.what, grant.what) and _net_covers(wide.who, grant.who)
        )
    if grant.kind is Kind.ALLOW:
        return (
            wide.who in (grant.who, "anyone")
            and fnmatchcase(grant.what.lower(), wide.what.lower().replace("[", "[[]"))
            and (wide.on in (grant.on, "every resource") or _pattern_covers(wide.on, grant.on))
        )
    return (wide.who, wide.what, wide.on) == (grant.who, grant.what, grant.on)


def _pattern_covers(wide: str, narrow: str) -> bool:
    return "*" in wide and fnmatchcase(narrow, wide.replace("[", "[[]"))


def _net_covers(wide: str, narrow: str) -> bool:
    if wide == narrow:
        return True
    try:
        one, two = ipaddress.ip_network(wide, strict=False), ipaddress.ip_network(narrow, strict=False)
    except ValueError:
        return False
    if isinstance(one, ipaddress.IPv4Network) and isinstance(two, ipaddress.IPv4Network):
        return two.subnet_of(one)
    return (
        isinstance(one, ipaddress.IPv6Network)
        and isinstance(two, ipaddress.IPv6Network)
        and two.subnet_of(one)
    )


def _ports_cover(wide: str, narrow: str) -> bool:
    if wide in ("all", narrow):
        return True
    (protocol, _, those), (other, _, these) = wide.partition(" "), narrow.partition(" ")
    if protocol != other or not these:
        return False
    if not those:
        return True
    outer, inner = _range(those), _range(these)
    return outer is not None and inner is not None and outer[0] <= inner[0] and inner[1] <= outer[1]


def _range(text: str) -> tuple[int, int] | None:
    first, _, last = text.partition("-")
    if not first.isdigit():
        return None
    return int(first), int(last) if last.isdigit() else int(first)


def _sentences(grants: Sequence[Grant], *, gained: bool) -> list[AccessChange]:
    """Return one sentence for the actions of one holder on one resource."""
    groups: dict[tuple[Kind, str, str, str], list[Grant]] = {}
    for grant in grants:
        groups.setdefault((grant.kind, grant.who, grant.on, grant.condition), []).append(grant)
    found = []
    for (kind, who, on, condition), same in groups.items():
        actions = tuple(dict.fromkeys(grant.what for grant in same))
        limit = kind in (Kind.DENY, Kind.BLOCK)
        change = ("limited" if gained else "unlimited") if limit else ("gained" if gained else "lost")
        text = _sentence(kind, who, actions, on, gained=gained) + (f", if {condition}" if condition else "")
        found.append(AccessChange(change, who, actions, on, condition, text, _names(same)))
    return sorted(found, key=lambda each: (each.change in ("limited", "lost"), not _wide(each), each.text))


def _wide(change: AccessChange) -> bool:
    """Whether a reviewer should see it first: from anywhere, by anyone, or anything."""
    return change.who in ("anyone", "0.0.0.0/0", "::/0") or any("*" in what for what in change.what)


def _sentence(kind: Kind, who: str, actions: tuple[str, ...], on: str, *, gained: bool) -> str:
    now, can = ("now", "can now") if gained else ("no longer", "can no longer")
    some = ", ".join(actions[:_MOST]) + (f" and {len(actions) - _MOST} more" if len(actions) > _MOST else "")
    if kind is Kind.ALLOW:
        return f"{who} {can} {_verb(actions)} {on} ({some})"
    if kind is Kind.DENY:
        return f"{who} is {now} denied {some} on {on}"
    if kind is Kind.ROLE:
        has = "now has" if gained else "no longer has"
        return f"{who} {has} {some}{_place(on)}"
    if kind is Kind.BLOCK:
        return f"{on} {'now blocks' if gained else 'no longer blocks'} {some}"
    at = _port_words(actions)
    if kind is Kind.EGRESS:
        return f"{on} {can} reach {who} at {at}"
    return f"{at} of {on} {'are' if at.startswith('ports') else 'is'} {now} reachable from {who}"


def _place(on: str) -> str:
    return f" {on}" if on.startswith("in ") else f" on {on}" if on else ""


def _port_words(actions: tuple[str, ...]) -> str:
    if "all" in actions:
        return "every port"
    tcp = [what.removeprefix("tcp ") for what in actions if what.startswith("tcp ")]
    others = [
        what if " " in what else f"every {what} port" for what in actions if not what.startswith("tcp ")
    ]
    several = len(tcp) > 1 or any("-" in text for text in tcp)
    first = [f"{'ports' if several else 'port'} {', '.join(tcp)}"] if tcp else []
    return ", ".join([*first, *others])


def _verb(actions: tuple[str, ...]) -> str:
    lowered = [action.lower() for action in actions]
    if any(action.startswith("every action") or action.rsplit(":", 1)[-1] == "*" for action in lowered):
        return "do anything with"
    if all(action.startswith(_ASSUME) for action in lowered):
        return "assume"
    names = [action.rsplit(":", 1)[-1] for action in lowered]
    reads = any(_READ.match(name) for name in names)
    uses = any(_USE.match(name) for name in names)
    writes = any(not _READ.match(name) and not _USE.match(name) for name in names)
    words = [word for word, is_so in (("read", reads), ("use", uses), ("write to", writes)) if is_so]
    return " and ".join(words)


def _later(grants: Iterable[Grant]) -> list[AccessChange]:
    return [
        AccessChange(
            "unresolved",
            grant.who,
            (grant.what,),
            grant.on,
            grant.condition,
            f"what {grant.who} can do{_place(grant.on)} is not known before the apply ({grant.what})",
            _names([grant]),
        )
        for grant in dict.fromkeys(grants)
    ]


def _names(grants: Iterable[Grant]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(grant.source.rsplit("::", 1)[-1] for grant in grants))
