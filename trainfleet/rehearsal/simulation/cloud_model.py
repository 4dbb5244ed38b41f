"""How a cloud names things, makes ids, fills outputs and answers functions: the defaults that hold for any
bridged provider.

`aws.py` and `kubernetes.py` override what their clouds do differently; every other installed SDK gets
these. The provider (`provider.py`) asks a `CloudModel` and has no knowledge of any cloud. Inputs are wire values unless a
docstring says plain.
"""

# ruff: noqa: ARG002, PLR0917 - clouds differ in what they look at; the questions are the same

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainfleet.rehearsal.simulation.check import Mistake, check_inputs
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, plain
from trainfleet.rehearsal.simulation.rules import broken, softened, unusual
from trainfleet.rehearsal.simulation.schema import Package, ResourceType
from trainfleet.rehearsal.simulation.values import Identity, digest, fill
from trainfleet.suggestions import did_you_mean

Answer = Callable[[dict[str, Any], str], dict[str, Any]]
Finder = Callable[[dict[str, Any], str, list[CloudObject]], dict[str, Any]]
"""An answer that depends on what exists."""


class CloudModel:
    """What is true of a cloud whose provider is a bridge and about which nothing more is known here."""

    region = "rehearsal-1"
    account = "111122223333"
    answers: dict[str, Answer] = {}
    finders: dict[str, Finder] = {}
    strict = False
    """Whether the API refuses text that only spells a number; a bridged provider converts it."""

    def check(self, package: Package, token: str, inputs: dict[str, Any]) -> list[Mistake]:
        """Return the mistakes in plain inputs."""
        resource = package.resource(token)
        if resource is None:
            return [
                Mistake(
                    "type",
                    f"{token} is not a type of pulumi-{package.name} {package.version}",
                    did_you_mean(token, package.classes),
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
        """Return what a resource or a function takes from the provider's settings when it does not say
        (project, subscription).
        """
        return {}

    def region_of(self, inputs: dict[str, Any], settings: dict[str, Any]) -> str:
        """Return the region of a resource with plain inputs, made by a provider with these settings."""
        return next(
            (place["region"] for place in (inputs, settings) if isinstance(place.get("region"), str)),
            self.region,
        )

    def place_of(self, settings: dict[str, Any]) -> str:
        """Return where a provider with these settings makes things, if the same id is another thing
        elsewhere.
        """
        return ""

    def completed(
        self, resource: ResourceType | None, inputs: dict[str, Any], settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Return inputs with what the provider itself adds to them from its settings."""
        return inputs

    def name_property(self, token: str) -> str:
        """Return the property that holds the physical name."""
        return "name"

    def make_name(self, token: str, logical: str, random: str) -> str:
        """Return the name the provider makes up."""
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
        """Return inputs with a generated physical name where the program gives none; an old generated one is
        kept.
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
        """Return the physical name, or nothing when there is none or it is not known yet."""
        value = plain(inputs.get(self.name_property(token)))
        return value if isinstance(value, str) and value != UNKNOWN else ""

    def unique_key(self, token: str, inputs: dict[str, Any], scope: str) -> str:
        """Return what may exist only once, as `kind|words for a person`; nothing where names may repeat."""
        return ""

    def make_id(self, token: str, inputs: dict[str, Any], name: str, random: str) -> str:
        """Return the id of a new resource; inputs are plain."""
        return f"{name}-{random[:8]}"

    def identity(
        self, token: str, inputs: dict[str, Any], name: str, resource_id: str, region: str
    ) -> Identity:
        """Return what the maker of outputs has to know."""
        return Identity(token, name, resource_id, region, self.account, {})

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
        """Return the outputs of a resource; `place` is what it takes from the provider's settings (see
        `defaults`).
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
        """Return whether a change of the leaf at `path` replaces a resource of any type of this cloud."""
        return False

    def delete_first(self, token: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
        """Return whether a replacement has to delete first: the name is the program's own and stays, so both
        cannot exist.
        """
        name = self.physical_name(token, new)
        made_up = self.name_property(token) in (new.get("__defaults") or [])
        return (
            bool(name)
            and not made_up
            and name == self.physical_name(token, old)
            and bool(self.unique_key(token, new, ""))
        )

    def config_replaces(self, olds: dict[str, Any], news: dict[str, Any]) -> list[str]:
        """Return the provider settings whose change replaces everything the provider made."""
        return []

    def drift_path(self, token: str) -> tuple[str, ...]:
        """Return the map of labels that people change by hand."""
        return ("tags",)

    def random(self, *parts: str) -> str:
        """Return digits that depend on the parts alone."""
        return digest(*parts)
