"""The package `azuread`: ids are GUIDs, or paths that end in one."""

from __future__ import annotations

from typing import Any

from trainfleet.rehearsal.simulation.azure.ids import TENANT
from trainfleet.rehearsal.simulation.other_packages.computed import ComputedModel
from trainfleet.rehearsal.simulation.paths import guid, plural
from trainfleet.rehearsal.simulation.values import digest

_CALLER = guid(digest("azuread", "caller"))


class AzureAdModel(ComputedModel):
    """Applications, service principals, groups, users and what belongs to them."""

    answers = {
        "azuread:index/getClientConfig:getClientConfig": lambda *_: {
            "id": _CALLER,
            "clientId": _CALLER,
            "objectId": _CALLER,
            "tenantId": TENANT,
        }
    }

    def make_id(self, token: str, inputs: dict[str, Any], name: str, random: str) -> str:  # noqa: ARG002 - shared signature
        kind = token.rsplit(":", 1)[-1]
        return f"/{plural(kind)}/{guid(random)}"

    def computed(self, kind: str, inputs: dict[str, Any], seed: str) -> dict[str, Any]:  # noqa: ARG002 - shared signature
        own = seed.rsplit("/", 1)[-1]
        names = ("clientId", "keyId", "applicationTenantId", "roleId", "scopeId")
        return {"objectId": own, "tenantId": TENANT, **{name: guid(digest(seed, name)) for name in names}}
