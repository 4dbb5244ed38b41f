"""How resources of a program refer to one another: by the values that identify them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, plain

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject


def names_of(record: CloudObject) -> set[str]:
    """Return every value by which a program may reference a resource."""
    outputs = plain(record.outputs)
    return {
        value
        for value in (
            record.id,
            *(outputs.get(name) for name in ("arn", "name", "selfLink", "bucket", "address")),
        )
        if isinstance(value, str)
    }


def texts(record: CloudObject, path: str) -> Iterator[str]:
    """Yield the strings at a path, also inside lists. A path without dots also matches the outputs."""
    yield from strings_at(plain(record.inputs), path.split("."))
    if "." not in path:
        yield from strings_at(plain(record.outputs), [path])


def strings_at(value: Any, steps: list[str]) -> Iterator[str]:
    """Yield the known strings below a value, also inside lists."""
    if isinstance(value, list):
        for item in value:
            yield from strings_at(item, steps)
    elif steps:
        if isinstance(value, dict):
            yield from strings_at(value.get(steps[0]), steps[1:])
    elif isinstance(value, str) and value != UNKNOWN:
        yield value


def logical_name(record: CloudObject) -> str:
    """Return the name of a resource in the program."""
    return record.urn.rsplit("::", 1)[-1]
