"""The zones of what a resource names, for example of the subnets of a control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.stateful_rules.references import names_of, texts

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]


def zones_at(row: Row, record: CloudObject, others: list[CloudObject]) -> set[str]:
    """Return the zones of all places that a resource names; empty if the program did not create them all."""
    token, path = row["of"].split(" ")
    named = set(texts(record, row["places"]))
    places = [other for other in others if other.token == token and names_of(other) & named]
    if len(places) != len(named):
        return set()
    return {zone for place in places for zone in texts(place, path)}


def moved(row: Row, before: CloudObject, record: CloudObject, others: list[CloudObject]) -> str:
    """Return which zones an update adds or removes, if the cloud accepts only the first ones."""
    old, new = (zones_at(row, each, others) for each in (before, record))
    if not old or not new or old == new:
        return ""
    return (
        f"{row['places']} must stay in the zones {', '.join(sorted(old))}, and would be in"
        f" {', '.join(sorted(new))}"
    )
