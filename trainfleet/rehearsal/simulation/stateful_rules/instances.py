"""Relations between EC2 instances and what their launch template names: network cards, placement groups,
reservations.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import plain

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"


def network_cards(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return why no instance of a node group could start with its template's network interfaces."""
    group = plain(record.inputs)
    template = _template(group, others)
    interfaces = [
        (int(each.get("networkCardIndex") or 0), int(each.get("deviceIndex") or 0), each.get("interfaceType"))
        for each in template.get("networkInterfaces") or ()
    ]
    twice = [
        place
        for place, count in Counter((card, device) for card, device, _ in interfaces).items()
        if count > 1
    ]
    if twice:
        return f"two network interfaces have network card {twice[0][0]} and device index {twice[0][1]}"
    if interfaces and (0, 0) not in {(card, device) for card, device, _ in interfaces}:
        return "no network interface has network card 0 and device index 0, which the primary one needs"
    machines = {*(group.get("instanceTypes") or ()), template.get("instanceType")}
    if row["machine"] not in machines:
        return ""
    for card, device, kind in interfaces:
        if card in row["ena"] and str(kind).startswith("efa"):
            return f"network card {card} of {row['machine']} has no EFA, and its interface is of type {kind}"
        if card not in row["ena"] and device and (card, 0) not in {(c, d) for c, d, _ in interfaces}:
            return f"the EFA of network card {card} has device index {device}; on {row['machine']} it is 0"
    return ""


def reserved_in_group(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return which placement group is not that of the reservation that a template targets. A group that the
    program creates is empty, so a reservation from elsewhere cannot have been created in it.
    """
    inputs = plain(record.inputs)
    target = (inputs.get("capacityReservationSpecification") or {}).get("capacityReservationTarget") or {}
    reservation, placement = target.get("capacityReservationId"), inputs.get("placement") or {}
    named = {str(placement[key]) for key in ("groupName", "groupId") if placement.get(key)}
    group = next((each for each in others if each.token == row["group"] and _names(each) & named), None)
    if not reservation or group is None:
        return ""
    own: dict[str, Any] = next((plain(each.inputs) for each in others if each.id == reservation), {})
    if own.get("placementGroupArn") in _names(group):
        return ""
    return (
        f"reservation {reservation} was not created in placement group {', '.join(sorted(named))}, so"
        " instances get InsufficientInstanceCapacity: name the reservation's own group, or none"
    )


def _template(group: dict[str, Any], others: list[CloudObject]) -> dict[str, Any]:
    used = (group.get("launchTemplate") or {}).get("id")
    return next((plain(each.inputs) for each in others if each.token == TEMPLATE and each.id == used), {})


def _names(group: CloudObject) -> set[Any]:
    outputs = plain(group.outputs)
    return {group.id, *(outputs.get(name) for name in ("name", "arn", "placementGroupId"))} - {None}
