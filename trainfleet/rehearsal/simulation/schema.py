"""Reads resource types from the installed Pulumi SDKs: inputs, required inputs, nested types, enums, outputs.

The Python packages do not include the providers' schema files. Their classes carry the same information,
except for defaults, conflicts and what forces a replacement (see replacements/). Each type is read on first
use and cached.
"""

from __future__ import annotations

import collections.abc
import enum
import functools
import importlib
import inspect
import json
import re
import sys
import threading
import types
import typing
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.rehearsal.simulation.docstrings import NOTHING, Documented, read
from trainfleet.rehearsal.simulation.facts import NO_FACT, Fact, facts_of

_LOCK = threading.RLock()


@dataclass(frozen=True)
class Kind:
    """A type. `name` is string, integer, number, boolean, list, map, object, enum, union, resource or any."""

    name: str
    item: Kind | None = None
    choices: tuple[Kind, ...] = ()
    cls: type | None = None
    values: tuple[Any, ...] = ()
    closed: bool = True


@dataclass(frozen=True)
class Property:
    """An input or output: its type, whether it is required, and its limits by documentation and API model."""

    kind: Kind
    required: bool
    docs: Documented = NOTHING
    fact: Fact = NO_FACT

    @property
    def documented(self) -> tuple[str, ...]:
        """Return the values that the documentation lists. The list may be incomplete."""
        return self.docs.values


@dataclass(frozen=True)
class ResourceType:
    """One resource type of an SDK."""

    token: str
    inputs: dict[str, Property]
    outputs: dict[str, Property]
    args: type | None = None
    """The input class."""

    @property
    def refers_to(self) -> list[str]:
        """The packages of the resources that are among its outputs."""
        kinds = [declared.kind for declared in self.outputs.values()]
        classes = [kind.item.cls if kind.item else kind.cls for kind in kinds if _scalar(kind) == "resource"]
        tokens = [str(getattr(cls, "pulumi_type", "")) for cls in classes]
        return list(dict.fromkeys(token.split(":")[0] for token in tokens if not token.startswith("pulumi:")))


@dataclass(frozen=True)
class Package:
    """An installed SDK: its plugin name, its version, and the class of every resource type."""

    name: str
    version: str
    module: str
    classes: dict[str, tuple[str, str]] = field(repr=False)

    def resource(self, token: str) -> ResourceType | None:
        """Return the type of a token, or None if the SDK does not have it."""
        return _resource(self.module, token, *self.classes[token]) if token in self.classes else None

    def is_component(self, token: str) -> bool:
        """Return whether the plugin builds a type as a component of other resources."""
        import pulumi

        return token in self.classes and issubclass(_class(*self.classes[token]), pulumi.ComponentResource)

    def method(self, token: str, name: str) -> type | None:
        """Return the class of the result of a type's method, or None if the SDK does not have it."""
        cls = _class(*self.classes[token]) if token in self.classes else None
        found = getattr(cls, f"{name[:1].upper()}{name[1:]}Result", None)
        return found if isinstance(found, type) else None


@functools.cache
def packages() -> dict[str, Package]:
    """Return the installed Pulumi SDKs by plugin name (aws, kubernetes, azure-native …)."""
    found: dict[str, Package] = {}
    for folder in map(Path, sys.path):
        for plugin in sorted(folder.glob("*/pulumi-plugin.json")) if folder.is_dir() else ():
            facts = json.loads(plugin.read_text())
            name, module = facts.get("name", ""), plugin.parent.name
            if name and facts.get("resource") and name not in found:
                version = facts.get("version") or _version(folder, module)
                found[name] = Package(name, version, module, _classes(plugin.parent / "__init__.py"))
    # `pulumi.dynamic` is part of the SDK: a package without declared types.
    found["pulumi-python"] = Package("pulumi-python", "1.0.0", "pulumi", {})
    return found


def is_plugin_component(resource: Mapping[str, Any]) -> bool:
    """Return whether a resource of a state is a component that a plugin builds."""
    token = str(resource["type"])
    package = packages().get(token.partition(":")[0])
    return package is not None and not resource.get("custom") and package.is_component(token)


def _version(folder: Path, module: str) -> str:
    """Return the version of a distribution whose plugin file has none, such as pulumiverse-time."""
    installed = [*folder.glob(f"{module}-*.dist-info/METADATA"), *folder.glob(f"{module}*.egg-info/PKG-INFO")]
    lines = (line for file in installed[:1] for line in file.read_text().splitlines())
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("Version:")), "")


def _classes(init: Path) -> dict[str, tuple[str, str]]:
    match = re.search(r'resource_modules="""(.*?)"""', init.read_text(), re.S)
    modules = json.loads(match.group(1)) if match else []
    return {token: (module["fqn"], name) for module in modules for token, name in module["classes"].items()}


def sdk_module(name: str) -> types.ModuleType:
    """Import a module of an SDK, completely.

    The SDKs load their modules on first use. Until Python 3.12 a second thread that uses one meanwhile sees
    it half loaded, so all of them are loaded under one lock.
    """
    with _LOCK:
        module = importlib.import_module(name)
        getattr(module, "outputs", None)  # loads it
        return module


def _class(fqn: str, name: str) -> type:
    with _LOCK, warnings.catch_warnings():
        # Other classes in the module may be deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        found: type = getattr(sdk_module(fqn), name)
        return found


@functools.cache
def _resource(package: str, token: str, fqn: str, name: str) -> ResourceType:  # noqa: ARG001 - `package` is part of the cache key
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module, cls = sdk_module(fqn), _class(fqn, name)
        home = sys.modules[cls.__module__]
        args = (
            getattr(home, f"{name}InitArgs", None)
            or getattr(home, f"{name}Args", None)
            or getattr(module, f"{name}Args", None)
        )
        return ResourceType(token, inputs_of(args) if args else {}, outputs_of(cls), args)


@functools.cache
def inputs_of(args: type) -> dict[str, Property]:
    """Return the properties of an input class by their wire names."""
    from pulumi import _types

    with _LOCK:
        kinds = _types.input_type_types(args)
        names = {python: wire for python, wire, _ in _types._py_properties(args)}
        documents = _documents(args)
        facts = facts_of(args)
        siblings = [name.replace("_", "") for name in names]
        result = {}
        for python, parameter in inspect.signature(args).parameters.items():
            if python not in names:
                continue
            kind = kind_of(kinds.get(names[python], object))
            result[names[python]] = Property(
                kind,
                parameter.default is inspect.Parameter.empty,
                read(
                    documents.get(python, ""), number=_scalar(kind) in ("integer", "number"), names=siblings
                ),
                facts.get(names[python], NO_FACT),
            )
        return result


def documents_of(args: type) -> dict[str, str]:
    """Return the documentation of an input class's properties by their wire names."""
    from pulumi import _types

    with _LOCK:
        documents = _documents(args)
        return {
            wire: documents[python] for python, wire, _ in _types._py_properties(args) if python in documents
        }


@functools.cache
def outputs_of(cls: type) -> dict[str, Property]:
    """Return the outputs of a resource or nested output class.

    `required` is False if the SDK declares the output optional.
    """
    from pulumi import _types

    with _LOCK:
        plain = _types.resource_types(cls)
        hints = _types._raw_return_hints(cls)
        return {
            name: Property(kind_of(plain[name]), not _optional(hints.get(name)))
            for name in plain
            if name not in ("id", "urn")
        }


def _is_closed(hint: type[enum.Enum], values: tuple[Any, ...]) -> bool:
    """Return whether an enum lists every valid value.

    In azure-native, an enum with the prefix `Known` is open (modelAsString in Azure's API definitions).
    """
    return (
        hint.__module__.startswith(_GENERATED_ENUMS)
        and len(values) <= _LONGEST_CLOSED
        and not hint.__name__.startswith("Known")
    )


def _scalar(kind: Kind) -> str:
    """Return the name of a scalar type, or of the scalar items of a list."""
    return _scalar(kind.item) if kind.name in ("list", "map") and kind.item else kind.name


def _optional(hint: Any) -> bool:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return type(None) in arguments
    return (
        any(_optional(argument) for argument in arguments[:1])
        if "Output" in str(typing.get_origin(hint))
        else False
    )


def kind_of(hint: Any) -> Kind:  # noqa: PLR0911 - one line per kind
    """Return the type of an annotation, without Output, Awaitable and Optional."""
    import pulumi

    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _union([argument for argument in typing.get_args(hint) if not _is_wrapper(argument)])
    if origin is typing.Literal:
        return Kind("enum", values=typing.get_args(hint))
    if origin in (collections.abc.Sequence, list):
        return Kind("list", kind_of(typing.get_args(hint)[0]))
    if origin in (collections.abc.Mapping, dict):
        return Kind("map", kind_of(typing.get_args(hint)[1]))
    if not inspect.isclass(hint):
        return Kind("any")
    if issubclass(hint, enum.Enum):
        values = tuple(member.value for member in hint)
        return Kind("enum", values=values, closed=_is_closed(hint, values))
    if hint in _SCALARS:
        return Kind(_SCALARS[hint])
    if getattr(hint, "_pulumi_input_type", False) or getattr(hint, "_pulumi_output_type", False):
        return Kind("object", cls=hint)
    return Kind("resource", cls=hint) if issubclass(hint, pulumi.Resource) else Kind("any")


_GENERATED_ENUMS = ("pulumi_azure_native.", "pulumi_kubernetes.")
"""SDKs whose enums are generated from the API's description. Other SDKs maintain theirs by hand, with a lag.
"""
_LONGEST_CLOSED = 60
"""A longer enum is a catalog (machine sizes, regions) that grows without a new API version."""

_SCALARS = {str: "string", bool: "boolean", int: "integer", float: "number"}


def _is_wrapper(argument: Any) -> bool:
    from pulumi import Output

    origin = typing.get_origin(argument) or argument
    return (
        argument is type(None)
        or origin in (Output, collections.abc.Awaitable)
        or (inspect.isclass(argument) and typing.is_typeddict(argument))
    )


def _union(arguments: list[Any]) -> Kind:
    kinds = tuple(dict.fromkeys(kind_of(argument) for argument in arguments))
    if not kinds or any(kind.name == "any" for kind in kinds):
        return Kind("any")
    if len(kinds) == 1:
        return kinds[0]
    enums = [kind for kind in kinds if kind.name == "enum"]
    if len(enums) == 1 and len(kinds) == 2 and all(kind.name in ("enum", "string") for kind in kinds):
        return Kind("enum", values=enums[0].values, closed=enums[0].closed)
    return Kind("union", choices=kinds)


def _documents(args: type) -> dict[str, str]:
    text = vars(args)["__init__"].__doc__ or "" if "__init__" in vars(args) else ""
    parts = re.split(r"^\s*:param [^\n]*?\b(\w+): ", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=False))
