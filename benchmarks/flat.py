"""Writes a flat Pulumi program: the resources of a state, one call after another, without components, spec or
rules.

The yardstick of benchmarks/preview.py. A value that came from other resources comes from their ids here too,
so that the
engine sees the same graph and a preview the same unknowns. Easy to get wrong: inputs in a state hold what the
provider
made up (`__defaults`) and secrets as ciphertext.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.rehearsal.simulation.schema import packages

SECRET = "4dabf18193072939515e22adb298388d"
PROVIDERS = "pulumi:providers:"
HEADER = '''"""A flat program: every resource of a platform, one after another."""

import pulumi


def at_once(value, *resources):
    """The value, which came from the resources and is known in a preview."""
    return pulumi.Output.all(*[resource.urn for resource in resources]).apply(lambda _: value)


def after(value, *resources):
    """The value, once the resources are there."""
    return pulumi.Output.all(*[resource.id for resource in resources]).apply(lambda _: value)


'''


@dataclass(frozen=True)
class Resource:
    """What a state says of one resource."""

    urn: str
    token: str
    inputs: dict[str, Any]
    needs: dict[str, list[str]]
    """URNs that each input came from."""
    after: list[str]
    provider: str
    protect: bool
    retain: bool
    early: frozenset[str] = frozenset()
    """Inputs that a preview knows already."""

    @property
    def name(self) -> str:
        """The logical name."""
        return self.urn.rsplit("::", 1)[-1]


def resources(state: list[dict[str, Any]], early: Mapping[tuple[str, str], Iterable[str]]) -> list[Resource]:
    """Return the resources of a state that a program registers itself: no components, no default providers,
    no stack.

    `early` has, by type and name, the inputs that a preview knew.
    """
    return [
        dataclasses.replace(resource, early=frozenset(early.get((resource.token, resource.name), ())))
        for resource in _resources(state)
    ]


def settings(state: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the stack's settings that the default providers were made with (`aws:region`, `gcp:project`), as
    a settings file has them.
    """
    found: dict[str, Any] = {}
    for entry in state:
        if entry["type"].startswith(PROVIDERS) and "::default_" in entry["urn"]:
            package = entry["type"].removeprefix(PROVIDERS)
            plain = _plain(entry.get("inputs") or {})
            found |= {
                f"{package}:{name}": value
                for name, value in plain.items()
                if isinstance(value, str) and name not in ("version", "pluginDownloadURL")
            }
    return found


def _resources(state: list[dict[str, Any]]) -> Iterator[Resource]:
    for entry in state:
        token, inputs = entry["type"], entry.get("inputs") or {}
        if not entry.get("custom") or (token.startswith(PROVIDERS) and "::default_" in entry["urn"]):
            continue
        made_up = set(inputs.get("__defaults") or ())
        known = {
            name: value for name, value in inputs.items() if not name.startswith("__") and name not in made_up
        }
        if token.startswith(PROVIDERS):
            known = {
                name: value for name, value in known.items() if name not in ("version", "pluginDownloadURL")
            }
        needs = {
            name: urns
            for name, urns in (entry.get("propertyDependencies") or {}).items()
            if urns and name in known
        }
        covered = {urn for urns in needs.values() for urn in urns}
        explicit = [urn for urn in entry.get("dependencies") or () if urn not in covered]
        provider = str(entry.get("provider", "")).rsplit("::", 1)[0]
        yield Resource(
            entry["urn"],
            token,
            _plain(known),
            needs,
            explicit,
            "" if "::default_" in provider else provider,
            bool(entry.get("protect")),
            bool(entry.get("retainOnDelete")),
        )


def _plain(value: Any) -> Any:
    """Return a value without what marks it: a secret's text cannot be read and does not matter here."""
    if isinstance(value, dict):
        return (
            "secret"
            if SECRET in value
            else {key: _plain(item) for key, item in value.items() if not key.startswith("__")}
        )
    return [_plain(item) for item in value] if isinstance(value, list) else value


def write_program(
    folder: Path, wanted: list[Resource], config: Mapping[str, Any] | None = None, name: str = "flat"
) -> None:
    """Write Pulumi.yaml, a stack with these settings and the program into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Pulumi.yaml").write_text(f"name: {name}\nruntime: python\n")
    (folder / "Pulumi.flat.yaml").write_text(json.dumps({"config": dict(config or {})}))
    # The resources are a module, so that Python keeps its compiled form as it does for any package of a real
    # platform.
    (folder / "__main__.py").write_text("import everything  # noqa: F401\n")
    (folder / "everything.py").write_text(source(wanted))


def source(wanted: list[Resource]) -> str:
    """Return the program's text.

    Raises:
        KeyError: a resource's type, or one of its inputs, is not in the installed SDK.
    """
    names = {resource.urn: f"r{index}" for index, resource in enumerate(wanted)}
    modules: dict[str, None] = {}
    calls = []
    for resource in wanted:
        if _outside(resource):
            calls.append(f"{names[resource.urn]} = {_untyped(resource, names)}")
            continue
        module, cls, arguments = _call(resource)
        # The package alone, as people write it. `import pulumi_kubernetes.apiextensions` beside the SDK's
        # lazy loading was seen
        # to leave a module where the class CustomResource should be.
        modules[module.partition(".")[0]] = None
        values = [f"{python}={_value(resource, wire, names)}" for python, wire in arguments.items()]
        lines = "".join(
            f"    {line},\n" for line in (repr(resource.name), *values, *_options(resource, names))
        )
        calls.append(f"{names[resource.urn]} = {module}.{cls}(\n{lines})\n")
    imports = "".join(f"import {module}\n" for module in sorted(modules))
    return HEADER.replace("import pulumi\n", f"import pulumi\n{imports}", 1) + "".join(calls)


def _outside(resource: Resource) -> bool:
    """Say whether the SDK has no class for a kind: what charts define."""
    package, _, _ = resource.token.partition(":")
    return package == "kubernetes" and resource.token not in packages()[package].classes


def _untyped(resource: Resource, names: dict[str, str]) -> str:
    """Return the call that registers a kind of no class, as trainfleet.infra.kubernetes does: by its type and
    whatever stands in it.
    """
    inputs = "".join(f"        {wire!r}: {_value(resource, wire, names)},\n" for wire in resource.inputs)
    options = "".join(f"    {line},\n" for line in _options(resource, names))
    return f"pulumi.CustomResource(\n    {resource.token!r},\n    {resource.name!r},\n    {{\n{inputs}    }},\n{options})\n"


def _value(resource: Resource, wire: str, names: dict[str, str]) -> str:
    value = repr(resource.inputs[wire])
    needed = [names[urn] for urn in resource.needs.get(wire, ()) if urn in names]
    return (
        f"{'at_once' if wire in resource.early else 'after'}({value}, {', '.join(needed)})"
        if needed
        else value
    )


def _options(resource: Resource, names: dict[str, str]) -> list[str]:
    chosen = {}
    if before := [names[urn] for urn in resource.after if urn in names]:
        chosen["depends_on"] = f"[{', '.join(before)}]"
    if resource.provider in names:
        chosen["provider"] = names[resource.provider]
    chosen |= {
        key: "True"
        for key, on in (("protect", resource.protect), ("retain_on_delete", resource.retain))
        if on
    }
    return (
        [f"opts=pulumi.ResourceOptions({', '.join(f'{key}={value}' for key, value in chosen.items())})"]
        if chosen
        else []
    )


def _call(resource: Resource) -> tuple[str, str, dict[str, str]]:
    """Return module, class, and the Python name of every input."""
    package, _, kind = resource.token.partition(":")
    if resource.token.startswith(PROVIDERS):
        module, cls = packages()[resource.token.removeprefix(PROVIDERS)].module, "Provider"
    elif package == "kubernetes" and kind.endswith(":CustomResourceDefinition"):
        # As trainfleet.infra.kubernetes makes it: the untyped class, which translates no key of a large
        # schema.
        return (
            "pulumi_kubernetes.apiextensions",
            "CustomResource",
            {"api_version" if name == "apiVersion" else name: name for name in resource.inputs},
        )
    else:
        module, cls = packages()[package].classes[resource.token]
    parameters = inspect.signature(getattr(importlib.import_module(module), cls)._internal_init).parameters
    squashed = {name.replace("_", "").lower(): name for name in parameters}
    return (
        module,
        cls,
        {squashed[wire.lower()]: wire for wire in resource.inputs if not _implied(package, wire)},
    )


def _implied(package: str, wire: str) -> bool:
    """Say whether the class itself gives the input."""
    return package == "kubernetes" and wire in ("apiVersion", "kind", "compat")


def same_resources(one: dict[tuple[str, str], Any], other: dict[tuple[str, str], Any]) -> list[str]:
    """Return how two plans differ, by type, name and inputs that are known in both; nothing when they do not."""
    lines = [f"only in one of them: {' '.join(key)}" for key in sorted(one.keys() ^ other.keys())]
    pairs = ((key, unnamed(one[key]), unnamed(other[key])) for key in sorted(one.keys() & other.keys()))
    lines += [
        f"{' '.join(key)}: {here[:300]} is not {there[:300]}" for key, here, there in pairs if here != there
    ]
    return lines


def unnamed(inputs: Any) -> str:
    """Return inputs as text, with a star for what the provider makes up in a name, which depends on the
    program's.

    AWS and Google Cloud get seven digits after a hyphen, Azure eight and no hyphen, roles on Azure a UUID.
    """
    text = re.sub(
        r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}",
        "*",
        json.dumps(inputs, sort_keys=True),
    )
    return re.sub(
        r"-[0-9a-f]{7}(?![0-9a-z])|(?<=[a-z0-9])[0-9a-f]{8}(?![0-9a-z-])",
        lambda found: "-*" if found[0][0] == "-" else "*",
        text,
    )
