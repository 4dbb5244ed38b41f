"""Converts values between the engine's protobuf structs, with secret wrappers and unknown markers, and JSON.

The other modules of `trainfleet.rehearsal.simulation` use JSON values. A secret keeps its wrapper, so that a
secret input becomes a secret output.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf import json_format, struct_pb2

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""The marker that the engine sends for a value that is not known yet."""
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"
OUTPUT = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
RESOURCE = "5cf8f73096256a8f31e491e813e4eb8e"

Json = Any


class NotFiniteError(ValueError):
    """Raised for a property that is NaN or infinite; `path` is its place."""

    what = "is NaN or infinite, which no API accepts"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: {self.what}")
        self.path = path


def from_struct(struct: Any) -> dict[str, Json]:
    """Return a protobuf struct as a dictionary. Secrets keep their wrapper.

    Raises:
        NotFiniteError: a number is NaN or infinite.
    """
    try:
        return dict(json_format.MessageToDict(struct))
    except ValueError as error:
        path = next(_not_finite(struct), None)
        if path is None:
            raise
        raise NotFiniteError(path) from error


def _not_finite(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the numbers in a struct, or in a value of one, that are NaN or infinite."""
    if isinstance(value, struct_pb2.Struct):
        for name, each in value.fields.items():
            yield from _not_finite(each, f"{path}.{name}" if path else name)
    elif value.HasField("struct_value"):
        yield from _not_finite(value.struct_value, path)
    elif value.HasField("list_value"):
        for number, each in enumerate(value.list_value.values):
            yield from _not_finite(each, f"{path}[{number}]")
    elif value.HasField("number_value") and not math.isfinite(value.number_value):
        yield path


def to_struct(value: dict[str, Json]) -> Any:
    """Return a dictionary as a protobuf struct."""
    struct = struct_pb2.Struct()
    json_format.ParseDict(value, struct)
    return struct


def is_secret(value: Json) -> bool:
    """Return whether a value is a secret's wrapper."""
    return isinstance(value, dict) and value.get(SIGNATURE) == SECRET


def secret(value: Json) -> Json:
    """Return a value as a secret; a value that is already wrapped does not change."""
    return value if is_secret(value) else {SIGNATURE: SECRET, "value": value}


def _unwrap(value: Json, when_secret: Callable[[Json], Json]) -> Json:
    if isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET:
            return when_secret(value.get("value"))
        return {key: _unwrap(item, when_secret) for key, item in value.items()}
    if isinstance(value, list):
        return [_unwrap(item, when_secret) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def resolved(value: Json) -> Json:
    """Return a value with outputs, as a component gets them, as values, secrets and unknown markers."""
    if isinstance(value, list):
        return [resolved(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get(SIGNATURE) != OUTPUT:
        return {key: resolved(item) for key, item in value.items()}
    inner = resolved(value["value"]) if "value" in value else UNKNOWN
    return secret(inner) if value.get("secret") else inner


def plain(value: Json) -> Json:
    """Return a value without secret wrappers, for checks and comparisons. Never print it; use `masked`."""
    return _unwrap(value, plain)


def masked(value: Json) -> Json:
    """Return a value that is safe to print or store: secrets are `[secret]`, unknowns are `[unknown]`."""
    return _mark_unknown(_unwrap(value, lambda _: "[secret]"))


def digested(value: Json) -> Json:
    """Return a value with digests in place of secrets, which show a change without showing the secret."""
    return _unwrap(
        value,
        lambda inner: (
            f"[secret {hashlib.sha256(json.dumps(plain(inner), sort_keys=True).encode()).hexdigest()[:12]}]"
        ),
    )


def has_unknown(value: Json) -> bool:
    """Return whether any part of a value is not known yet."""
    if isinstance(value, dict):
        return any(has_unknown(item) for item in value.values())
    if isinstance(value, list):
        return any(has_unknown(item) for item in value)
    return bool(value == UNKNOWN)


def _mark_unknown(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _mark_unknown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_mark_unknown(item) for item in value]
    return "[unknown]" if value == UNKNOWN else value


def texts(value: Json) -> Iterator[str]:
    """Yield every text in a plain value; keys are not included."""
    if isinstance(value, dict):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value
