"""The package `awsx`: how many subnets and gateways its network has."""

from __future__ import annotations

from typing import Any

from trainfleet.rehearsal.simulation.cloud_model import CloudModel

_ZONES = 3
"""Zones of a network for which the program sets none (awsx.ec2.Vpc, numberOfAvailabilityZones)."""


class AwsxModel(CloudModel):
    """Components for AWS."""

    def lengths(self, token: str, inputs: dict[str, Any]) -> dict[str, int]:
        if token != "awsx:ec2:Vpc":
            return {}
        names, number = inputs.get("availabilityZoneNames"), inputs.get("numberOfAvailabilityZones")
        zones = len(names) if isinstance(names, list) else number if isinstance(number, int) else _ZONES
        specs = inputs.get("subnetSpecs")
        kinds = (
            [str(each.get("type")).lower() for each in specs if isinstance(each, dict)]
            if isinstance(specs, list)
            else ["private", "public"]
        )
        subnets = {kind: zones * kinds.count(kind) for kind in ("private", "public", "isolated")}
        strategy = (inputs.get("natGateways") or {}).get("strategy", "OnePerAz")
        gateways = {"None": 0, "Single": 1}.get(strategy, zones)
        endpoints = inputs.get("vpcEndpointSpecs")
        return {
            **{f"{kind}SubnetIds": number for kind, number in subnets.items()},
            **dict.fromkeys(("natGateways", "eips"), gateways),
            **dict.fromkeys(("routes", "routeTables", "routeTableAssociations"), sum(subnets.values())),
            "subnetLayout": len(set(kinds)),
            "vpcEndpoints": len(endpoints) if isinstance(endpoints, list) else 0,
        }
