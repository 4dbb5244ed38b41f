"""The defaults of a bridged provider: names, ids, outputs and answers to functions.

`aws.py`, `azure.py`, `gcp.py` and `kubernetes.py` override them; every other installed SDK uses them as they
are. Inputs keep their secret wrappers (see `pulumi_values.py`) unless a docstring calls them plain.
"""

# ruff: noqa: ARG002, PLR0917 - all clouds share these signatures; not every cloud uses every argument

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainfleet.rehearsal.simulation.check import TYPES, Mistake, check_inputs
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, plain
from trainfleet.rehearsal.simulation.rules import broken, softened, unusual
from trainfleet.rehearsal.simulation.schema import Package, ResourceType
from trainfleet.rehearsal.simulation.values import Identity, digest, fill
from trainfleet.suggestions import did_you_mean

Answer = Callable[[dict[str, Any], str], dict[str, Any]]
Finder = Callable[[dict[str, Any], str, list[CloudObject]], dict[str, Any] | None]
"""A function whose result depends on what exists. None: it has no answer to these arguments."""


class CloudModel:
    """A cloud with a bridged provider and no special rules."""

    region = "rehearsal-1"
    account = "111122223333"
    answers: dict[str, Answer] = {}
    finders: dict[str, Finder] = {}
    strict = False
    """Whether the API rejects a string that spells a number. A bridged provider converts it."""

    def check(self, package: Package, token: str, inputs: dict[str, Any]) -> list[Mistake]:
        """Return the mistakes in plain inputs."""
        resource = package.resource(token)
        if resource is None:
            return [
                Mistake(
                    "type",
                    f"{token} is not a type of pulumi-{package.name} {package.version}",
                    did_you_mean(token, package.classes),
                    source=TYPES,
                )
            ]
        taken = softened(package.name, token)
        found = [
            mistake
            for mistake in check_inputs(resource, inputs, strict=self.strict)
            if not (mistake.documented and mistake.property in taken)
        ]
        for more in (broken(package.name, token, inputs), unusual(package.name, resource, inputs)):
            wrong = {mistake.path for mistake in found}
            found += [
                mistake
                for mistake in more
                if mistake.path not in wrong and not (mistake.documented and mistake.property in taken)
            ]
        return found

    def defaults(self, settings: dict[str, Any]) -> dict[str, str]:
        """Return the inputs that default to a provider setting, such as the project or the subscription."""
        return {}

    def region_of(self, inputs: dict[str, Any], settings: dict[str, Any]) -> str:
        """Return the region of a resource with plain inputs, under a provider with these settings."""
        return next(
            (place["region"] for place in (inputs, settings) if isinstance(place.get("region"), str)),
            self.region,
        )

    def place_of(self, settings: dict[str, Any]) -> str:
        """Return the place in which ids are unique under these settings; empty if ids are global."""
        return ""

    def completed(
        self, resource: ResourceType | None, inputs: dict[str, Any], settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the inputs with what the provider adds to them from its settings."""
        return inputs

    def name_property(self, token: str) -> str:
        """Return the property that holds the physical name."""
        return "name"

    def make_name(self, token: str, logical: str, random: str) -> str:
        """Return the physical name that the provider generates."""
        return f"{logical}-{random[:7]}"

    def with_name(
        self,
        resource: ResourceType | None,
        token: str,
        inputs: dict[str, Any],
        old: dict[str, Any],
        logical: str,
        random: str,
    ) -> dict[str, Any]:
        """Return the inputs with a physical name.

        If the program gives none, the name is generated, and an earlier generated name is kept.

        Args:
            resource: what the SDK declares; None for an unknown type.
            token: its type.
            inputs: the program's inputs.
            old: the inputs of the previous update; empty for a new resource.
            logical: its logical name.
            random: the suffix of a generated name.
        """
        name = self.name_property(token)
        declared = resource.inputs.get(name) if resource else None
        if (
            declared is None
            or declared.required
            or declared.kind.name != "string"
            or inputs.get(name) is not None
            or f"{name}Prefix" in inputs
        ):
            return inputs
        kept = plain(old.get(name)) if name in (old.get("__defaults") or []) else None
        return {**inputs, name: kept or self.make_name(token, logical, random), "__defaults": [name]}

    def physical_name(self, token: str, inputs: dict[str, Any]) -> str:
        """Return the physical name; empty if the resource has none or it is not known yet."""
        value = plain(inputs.get(self.name_property(token)))
        return value if isinstance(value, str) and value != UNKNOWN else ""

    def unique_key(self, token: str, inputs: dict[str, Any], scope: str) -> str:
        """Return the key that may exist only once, as `kind|readable name`; empty if names may repeat."""
        return ""

    def make_id(self, token: str, inputs: dict[str, Any], name: str, random: str) -> str:
        """Return the id of a new resource with plain inputs."""
        return f"{name}-{random[:8]}"

    def identity(
        self, token: str, inputs: dict[str, Any], name: str, resource_id: str, region: str
    ) -> Identity:
        """Return the identity from which outputs are computed."""
        return Identity(token, name, resource_id, region, self.account, {})

    def lengths(self, token: str, inputs: dict[str, Any]) -> dict[str, int]:
        """Return the number of items of a component's outputs, where it is not 1."""
        return {}

    def updated(
        self, token: str, old: dict[str, Any], new: dict[str, Any], outputs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the outputs that an update changes, from the old and new inputs and the old outputs."""
        return {}

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
        """Return the outputs of a resource.

        Args:
            resource: what the SDK declares; None for an unknown type.
            token: its type.
            inputs: its inputs, with defaults.
            logical: its logical name.
            resource_id: its ID; empty in a preview.
            region: region of the provider.
            preview: whether outputs that a cloud decides are unknown.
            place: its values from `defaults`, such as project and location.
        """
        if resource is None:
            return {key: value for key, value in inputs.items() if not key.startswith("__")}
        name = self.physical_name(token, inputs) or logical
        return fill(
            resource,
            inputs,
            self.identity(token, {**(place or {}), **plain(inputs)}, name, resource_id, region),
            preview=preview,
        )

    def always_replaces(self, token: str, path: tuple[str, ...]) -> bool:
        """Return whether changing the leaf at `path` replaces a resource of any type of this cloud."""
        return False

    def knows_replacements(self, token: str) -> bool:
        """Return whether `always_replaces` is all that replaces a type, so that it needs no row."""
        return False

    def not_done(self, token: str) -> str:
        """Return what creating a resource of this type does in reality and not here; empty if nothing."""
        return ""

    def delete_first(self, token: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
        """Return whether a replacement must delete first.

        It must if the program itself sets a unique name and keeps it: the two resources cannot coexist.
        """
        name = self.physical_name(token, new)
        made_up = self.name_property(token) in (new.get("__defaults") or [])
        return (
            bool(name)
            and not made_up
            and name == self.physical_name(token, old)
            and bool(self.unique_key(token, new, ""))
        )

    def config_compared(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return provider settings in the form in which the provider compares them."""
        return settings

    def config_replaces(self, olds: dict[str, Any], news: dict[str, Any]) -> list[str]:
        """Return the provider settings whose change replaces everything that the provider created."""
        return []

    def drift_path(self, token: str) -> tuple[str, ...]:
        """Return the path of the labels that people change by hand."""
        return ("tags",)

    def random(self, *parts: str) -> str:
        """Return hexadecimal digits that depend only on the parts."""
        return digest(*parts)
