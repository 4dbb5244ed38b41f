"""Checks custom resources against the OpenAPI v3 schema of their definition, as the API server does.

Definitions come from the program itself and from the copies that the project ships for its operator. Source:
Kubernetes documentation, structural schemas.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.json_schema import Schema, violations
from trainfleet.rehearsal.simulation.kubernetes_types import amount
from trainfleet.rehearsal.simulation.pulumi_values import SIGNATURE, UNKNOWN
from trainfleet.suggestions import did_you_mean


def definition_mistakes(inputs: dict[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in a definition beyond the types of its fields."""
    spec = inputs.get("spec")
    name = (inputs.get("metadata") or {}).get("name") if isinstance(inputs.get("metadata"), dict) else None
    if not isinstance(spec, dict):
        return
    names = spec.get("names") if isinstance(spec.get("names"), dict) else {}
    plural, group = (names or {}).get("plural"), spec.get("group")
    if (
        all(isinstance(text, str) and text != UNKNOWN for text in (name, plural, group))
        and name != f"{plural}.{group}"
    ):
        yield Mistake(
            "metadata.name", f"{name!r} is not the plural and the group", f"it must be `{plural}.{group}`"
        )
    versions = _versions(spec)
    if versions and sum(bool(version.get("storage")) for version in versions) != 1:
        yield Mistake("spec.versions", "not exactly one version is stored", "set `storage` on one of them")
    for index, version in enumerate(versions):
        if not version.get("schema"):
            yield Mistake(f"spec.versions[{index}].schema", "missing required property")


def _versions(spec: Any) -> list[dict[str, Any]]:
    versions = spec.get("versions") if isinstance(spec, dict) else None
    return [each for each in versions if isinstance(each, dict)] if isinstance(versions, list) else []


def schemas_of(inputs: dict[str, Any]) -> dict[str, Schema]:
    """Return the schemas of a definition by `group/version:Kind`."""
    spec = inputs.get("spec") or {}
    found = {}
    for version in _versions(spec):
        holder = version.get("schema")
        schema = holder.get("openAPIV3Schema") if isinstance(holder, dict) else None
        if isinstance(schema, dict) and isinstance(spec.get("names"), dict):
            found[f"{spec.get('group')}/{version.get('name')}:{spec['names'].get('kind')}"] = schema
    return found


def schema_mistakes(schema: Schema, inputs: dict[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in a custom resource. `metadata` is checked elsewhere."""
    known = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if inputs.get(name) is None:
            yield Mistake(str(name), "missing required property")
    for name, value in inputs.items():
        if name in ("apiVersion", "kind", "metadata") or name.startswith("__"):
            continue
        if name in known:
            yield from _value(name, value, known[name])
        elif known and not _keeps_unknown(schema):
            yield Mistake(name, "unknown property", did_you_mean(name, known))


def _extension(schema: Schema, name: str) -> Any:
    return schema.get(f"x-kubernetes-{name}", schema.get(f"x_kubernetes_{name.replace('-', '_')}"))


def _keeps_unknown(schema: Schema) -> bool:
    return bool(_extension(schema, "preserve-unknown-fields") or _extension(schema, "embedded-resource"))


def value_mistakes(path: str, value: Any, schema: Schema) -> Iterator[Mistake]:
    """Yield the mistakes in one value of a schema."""
    yield from _value(path, value, schema)


def _value(path: str, value: Any, schema: Schema) -> Iterator[Mistake]:
    if value is None or value == UNKNOWN or (isinstance(value, dict) and SIGNATURE in value) or not schema:
        return
    kind = schema.get("type")
    if _extension(schema, "int-or-string"):
        if isinstance(value, (bool, list, dict, float)):
            yield Mistake(path, f"must be a whole number or a string, not {value!r}")
        else:
            yield from _limited(path, value, schema)
        return
    expected = _TYPES.get(str(kind))
    if expected is not None and not (
        isinstance(value, expected[0]) and (isinstance(value, bool) == (kind == "boolean"))
    ):
        yield Mistake(path, f"must be {expected[1]}, not {_shown(value)}")
        return
    yield from _limited(path, value, schema)
    if isinstance(value, list):
        yield from _list(path, value, schema)
    elif isinstance(value, dict):
        yield from _object(path, value, schema)


_TYPES: dict[str, tuple[Any, str]] = {
    "string": (str, "a string"),
    "integer": (int, "a whole number"),
    "number": ((int, float), "a number"),
    "boolean": (bool, "true or false"),
    "array": (list, "a list"),
    "object": (dict, "an object"),
}


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _limited(path: str, value: Any, schema: Schema) -> Iterator[Mistake]:
    return (Mistake(path, what, fix) for what, fix in violations(value, schema))


def _list(path: str, value: list[Any], schema: Schema) -> Iterator[Mistake]:
    for index, item in enumerate(value):
        yield from _value(f"{path}[{index}]", item, schema.get("items") or {})
    yield from _repeated(path, value, schema)


def _repeated(path: str, value: list[Any], schema: Schema) -> Iterator[Mistake]:
    """Yield the duplicates in a set, or the duplicate keys in a list of type map."""
    keys = _extension(schema, "list-map-keys") or []
    seen: dict[str, int] = {}
    for index, item in enumerate(value):
        if _extension(schema, "list-type") == "set" and isinstance(item, str):
            key = item
        elif (
            _extension(schema, "list-type") == "map"
            and isinstance(item, dict)
            and all(isinstance(item.get(name), (str, int)) for name in keys)
        ):
            key = ", ".join(str(item[name]) for name in keys)
        else:
            continue
        if key in seen and UNKNOWN not in key:
            yield Mistake(
                f"{path}[{index}]",
                f"{key!r} is given twice, first in {path}[{seen[key]}]",
                "each must be different",
            )
        seen.setdefault(key, index)


def _object(path: str, value: dict[str, Any], schema: Schema) -> Iterator[Mistake]:
    known = schema.get("properties") or {}
    other = schema.get("additionalProperties")
    if path.rsplit(".", 1)[-1] in ("limits", "requests") and not known:
        for name, entry in value.items():
            if entry != UNKNOWN and not isinstance(entry, (dict, list)) and amount(entry) is None:
                yield Mistake(
                    f'{path}["{name}"]',
                    f"{entry!r} is not a quantity",
                    "it must be like 500m, 4, 8Gi or 200M",
                )
        return
    for name, entry in value.items():
        if name in known:
            yield from _value(f"{path}.{name}", entry, known[name])
        elif isinstance(other, dict) and other:
            yield from _value(f'{path}["{name}"]', entry, other)
        elif known and not other and not _keeps_unknown(schema):
            yield Mistake(f"{path}.{name}", "unknown property", did_you_mean(name, known))
    for name in schema.get("required") or ():
        if value.get(name) is None:
            yield Mistake(f"{path}.{name}", "missing required property")
