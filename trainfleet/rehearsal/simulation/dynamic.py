"""Dynamic resources (`pulumi.dynamic`): their provider is code of the program, and it is not executed.

A resource is created with its inputs. What its provider computes (a property that the program gives as None)
has a plausible value, or the one in rehearsal.toml.
"""

# ruff: noqa: ARG002, PLR0917 - all models share these signatures

from __future__ import annotations

from typing import Any

from trainfleet.rehearsal.engine.program_hooks import OUTPUTS
from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.cloud_model import CloudModel
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.rehearsal.simulation.schema import Package, ResourceType
from trainfleet.rehearsal.simulation.values import Identity, text

PACKAGE = "pulumi-python"


class DynamicModel(CloudModel):
    """Any inputs are right: only the provider's code could tell."""

    def check(self, package: Package, token: str, inputs: dict[str, Any]) -> list[Mistake]:
        return []

    def name_property(self, token: str) -> str:
        return ""

    def make_id(self, token: str, inputs: dict[str, Any], name: str, random: str) -> str:
        return random[:17]

    def outputs(
        self,
        resource: ResourceType | None,
        token: str,
        inputs: dict[str, Any],
        logical: str,
        resource_id: str,
        region: str,
        *,
        preview: bool,
        place: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        identity = Identity(token, logical, resource_id, region, self.account, {})
        computed = {
            name: UNKNOWN if preview else text(identity, (name,)) for name in inputs.get(OUTPUTS) or ()
        }
        return {**computed, **{name: value for name, value in inputs.items() if not name.startswith("__")}}

    def not_done(self, token: str) -> str:
        return "its provider's code is not executed"
