"""The base of a model whose outputs are computed from a resource's inputs and id."""

# ruff: noqa: ARG002 - all models share these signatures

from __future__ import annotations

from typing import Any

from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.cloud_model import CloudModel
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, has_unknown
from trainfleet.rehearsal.simulation.schema import Package
from trainfleet.rehearsal.simulation.values import Identity


class ComputedModel(CloudModel):
    """A package without names or regions of its own."""

    replaced_by_any_change = False
    """Whether the provider replaces a resource for a change of any input."""
    source = ""
    """Where the package's own rules are written."""

    def computed(self, kind: str, inputs: dict[str, Any], seed: str) -> dict[str, Any]:
        """Return the outputs of a resource with known plain inputs; `seed` is its id."""
        return {}

    def mistakes(self, kind: str, inputs: dict[str, Any]) -> list[Mistake]:
        """Return what only the provider itself refuses, in known plain inputs."""
        return []

    def check(self, package: Package, token: str, inputs: dict[str, Any]) -> list[Mistake]:
        found = super().check(package, token, inputs)
        return found if found or has_unknown(inputs) else self.mistakes(_kind(token), inputs)

    def name_property(self, token: str) -> str:
        return ""

    def make_id(self, token: str, inputs: dict[str, Any], name: str, random: str) -> str:
        return random[:32]

    def identity(
        self, token: str, inputs: dict[str, Any], name: str, resource_id: str, region: str
    ) -> Identity:
        known = resource_id and not has_unknown(inputs)
        own = self.computed(_kind(token), inputs, resource_id) if known else _Unknown()
        return Identity(token, name, resource_id, region, self.account, own)

    def always_replaces(self, token: str, path: tuple[str, ...]) -> bool:
        return self.replaced_by_any_change

    def knows_replacements(self, token: str) -> bool:
        return self.replaced_by_any_change


class _Unknown(dict[str, Any]):
    """Every output is unknown: one of the inputs is, or the resource does not exist yet."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: str) -> Any:
        return UNKNOWN

    def get(self, key: str, default: Any = None) -> Any:
        return UNKNOWN


def _kind(token: str) -> str:
    return token.rsplit(":", 1)[-1]
