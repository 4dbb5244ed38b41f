"""The Azure model: the names that azure-native generates, ids and regions."""

# ruff: noqa: ARG002 - all clouds share these signatures; not every cloud uses every argument

from __future__ import annotations

import re
from typing import Any

from trainfleet.rehearsal.simulation.azure.answers import ANSWERS
from trainfleet.rehearsal.simulation.azure.ids import LOCATION, SUBSCRIPTION, resource_type, short, template
from trainfleet.rehearsal.simulation.azure.outputs import own_outputs, principal
from trainfleet.rehearsal.simulation.cloud_model import CloudModel
from trainfleet.rehearsal.simulation.paths import fields, filled, guid
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.schema import ResourceType
from trainfleet.rehearsal.simulation.values import Identity

_WORLDWIDE = ("storage:StorageAccount", "keyvault:Vault", "containerregistry:Registry")
_UUIDS = ("authorization:RoleAssignment", "authorization:RoleDefinition")


class AzureModel(CloudModel):
    """Azure: ids are paths under a subscription and a resource group; `location` is a provider setting."""

    region = LOCATION
    account = SUBSCRIPTION
    answers = ANSWERS
    strict = True

    def defaults(self, settings: dict[str, Any]) -> dict[str, str]:
        return {"subscriptionId": settings.get("subscriptionId") or SUBSCRIPTION}

    def region_of(self, inputs: dict[str, Any], settings: dict[str, Any]) -> str:
        found = next(
            (
                value
                for value in (inputs.get("location"), settings.get("location"))
                if isinstance(value, str) and value
            ),
            LOCATION,
        )
        return found.replace(" ", "").lower()

    def completed(
        self, resource: ResourceType | None, inputs: dict[str, Any], settings: dict[str, Any]
    ) -> dict[str, Any]:
        if (
            resource is None
            or "location" not in resource.inputs
            or inputs.get("location") is not None
            or not settings.get("location")
        ):
            return inputs
        return {**inputs, "location": settings["location"]}

    def name_property(self, token: str) -> str:
        return fields(template(token))[-1]

    def make_name(self, token: str, logical: str, random: str) -> str:
        if short(token) in _UUIDS:
            return guid(random)
        inside = len({*fields(template(token))} - {"subscriptionId", "resourceGroupName"}) > 1
        if short(token) in _WORLDWIDE:
            return (
                f"{logical}{random[:8]}"
                if short(token) == "keyvault:Vault"
                else re.sub(r"[^a-z0-9]", "", logical.lower()) + random[:8]
            )
        return logical if inside else f"{logical}{random[:8]}"

    def unique_key(self, token: str, inputs: dict[str, Any], scope: str) -> str:
        name = self.physical_name(token, inputs)
        if not name:
            return ""
        if short(token) in _WORLDWIDE:
            return f"{token}|{name.lower()}"
        return (
            f"{token}|"
            f"{self.make_id(token, {'subscriptionId': SUBSCRIPTION, **plain(inputs)}, name, '').lower()}"
        )

    def make_id(self, token: str, inputs: dict[str, Any], name: str, random: str) -> str:
        return filled(template(token), {**inputs, self.name_property(token): name}, random)

    def identity(
        self, token: str, inputs: dict[str, Any], name: str, resource_id: str, region: str
    ) -> Identity:
        own: dict[str, Any] = {
            "name": name,
            "type": resource_type(resource_id),
            "location": region,
            "provisioningState": "Succeeded",
        }
        if "SystemAssigned" in str(
            (inputs.get("identity") or {}).get("type", "") if isinstance(inputs.get("identity"), dict) else ""
        ):
            own["identity"] = principal(resource_id)
        own |= own_outputs(short(token), inputs, name, resource_id, region)
        return Identity(
            token,
            name,
            resource_id,
            region,
            str(inputs.get("subscriptionId") or SUBSCRIPTION),
            own,
            sparse=True,
        )
