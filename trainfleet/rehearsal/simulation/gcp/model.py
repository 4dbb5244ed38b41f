"""The Google Cloud model: names, ids and self links, and zones that belong to the region.

Project, region and zone default to the provider's settings.
"""

from __future__ import annotations

import re
from typing import Any

from trainfleet.rehearsal.simulation.check import Mistake, sourced
from trainfleet.rehearsal.simulation.cloud_model import CloudModel
from trainfleet.rehearsal.simulation.gcp.answers import ANSWERS, FINDERS
from trainfleet.rehearsal.simulation.gcp.ids import HOSTS, IDS, LOCAL, NAMES, PROJECT, REGION, short, zones
from trainfleet.rehearsal.simulation.gcp.outputs import own_outputs
from trainfleet.rehearsal.simulation.paths import filled, plural
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.schema import Package
from trainfleet.rehearsal.simulation.values import Identity

_LONG_NAMES = (
    "secretmanager/secret:Secret",
    "projects/iAMCustomRole:IAMCustomRole",
    "logging/projectBucketConfig:ProjectBucketConfig",
)
"""Types whose output `name` is the full path."""
_BARE = ("cluster", "router", "managedZone", "bucket")
_LABELS = {
    "container/cluster:Cluster": ("resourceLabels",),
    "monitoring/notificationChannel:NotificationChannel": ("userLabels",),
}


_REGION = re.compile(r"(?:.*/)?([a-z]+-[a-z]+\d+)(-[a-z])?")
_ZONES = (
    "zone",
    "zones",
    "nodeLocations",
    "distributionPolicyZones",
    "replicaZones",
    "locationId",
    "alternativeLocationId",
)


def elsewhere(inputs: dict[str, Any]) -> list[Mistake]:
    """Return the zones in plain inputs that are outside the resource's region."""
    at = next(
        (match for key in ("region", "location") if (match := _REGION.fullmatch(str(inputs.get(key) or "")))),
        None,
    )
    found: list[Mistake] = []
    for name in _ZONES if at else ():
        given = inputs.get(name)
        for index, zone in enumerate(given if isinstance(given, list) else [given]):
            where = _REGION.fullmatch(str(zone or ""))
            if at and where and where[2] and where[1] != at[1]:
                path = f"{name}[{index}]" if isinstance(given, list) else name
                found.append(Mistake(path, f"{zone!r} is not in {at[1]}", f"a zone of it is like {at[1]}-a"))
    return sourced(found, "cloud.google.com/compute/docs/regions-zones")


class GcpModel(CloudModel):
    """Google Cloud: ids are paths, names are lowercase, and tags are called `labels`."""

    region = REGION
    account = PROJECT
    answers = ANSWERS
    finders = FINDERS

    def check(self, package: Package, token: str, inputs: dict[str, Any]) -> list[Mistake]:
        return [*super().check(package, token, inputs), *elsewhere(inputs)]

    def defaults(self, settings: dict[str, Any]) -> dict[str, str]:
        region = self.region_of({}, settings)
        return {
            "project": settings.get("project") or PROJECT,
            "region": region,
            "zone": settings.get("zone") or zones(region)[0],
        }

    def region_of(self, inputs: dict[str, Any], settings: dict[str, Any]) -> str:
        for value in (
            inputs.get("region"),
            inputs.get("location"),
            inputs.get("zone"),
            settings.get("region"),
            settings.get("zone"),
        ):
            if isinstance(value, str) and (
                found := re.fullmatch(r"(?:.*/)?([a-z]+-[a-z]+\d+)(?:-[a-z])?", value)
            ):
                return found.group(1)
        return REGION

    def name_property(self, token: str) -> str:
        return NAMES.get(short(token), "name")

    def make_name(self, token: str, logical: str, random: str) -> str:
        name = f"{logical}-{random[:7]}"
        return name if short(token) == "projects/iAMCustomRole:IAMCustomRole" else name.lower()

    def unique_key(self, token: str, inputs: dict[str, Any], scope: str) -> str:
        template = IDS.get(short(token), "")
        name = self.physical_name(token, inputs)
        if not name or f"{{{self.name_property(token)}}}" not in template:
            return ""
        return (
            f"{token}|{self.make_id(token, {'project': PROJECT, 'region': scope, **plain(inputs)}, name, '')}"
        )

    def make_id(self, token: str, inputs: dict[str, Any], name: str, random: str) -> str:
        kind = short(token)
        region = self.region_of(inputs, {})
        values = {"location": region, "zone": zones(region)[0], **inputs, self.name_property(token): name}
        values |= {
            key: str(values[key]).rsplit("/", 1)[-1] for key in (*_BARE, "region", "zone") if key in values
        }
        if kind in IDS:
            return filled(IDS[kind], values, random)
        if "member" in inputs or kind.endswith(("IAMBinding", "IamBinding")):
            place = ("region", "zone", "project") if not kind.startswith("projects/") else ("region", "zone")
            target = next(
                (
                    str(inputs[key])
                    for key in inputs
                    if key not in ("member", "members", "role", "condition", *place)
                ),
                PROJECT,
            )
            return "/".join(str(part) for part in (target, inputs.get("role"), inputs.get("member")) if part)
        return filled(f"{LOCAL}{plural(kind.rsplit(':', 1)[-1])}/{name}", values, random)

    def identity(
        self, token: str, inputs: dict[str, Any], name: str, resource_id: str, region: str
    ) -> Identity:
        kind = short(token)
        own = {
            "project": inputs.get("project"),
            "region": region,
            "location": region,
            "zone": inputs.get("zone"),
        }
        if host := HOSTS.get(kind.split("/")[0]):
            own["selfLink"] = host + resource_id
        if kind in _LONG_NAMES:
            own["name"] = resource_id
        own |= own_outputs(kind, inputs, name, resource_id, region)
        return Identity(
            token, name, resource_id, region, str(inputs.get("project") or PROJECT), own, sparse=True
        )

    def drift_path(self, token: str) -> tuple[str, ...]:
        return _LABELS.get(short(token), ("labels",))
