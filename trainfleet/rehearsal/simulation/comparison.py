"""Which values are the same to a provider although they are written differently.

The engine compares what is written. A provider holds some lists as sets, reads JSON as a document and ranges
of addresses as numbers, and ignores the case of Azure's resource ids. `comparable` writes the old value as
the new one where both are the same, so that only a real difference is left.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainfleet.rehearsal.simulation.property_paths import Path, any_item
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, is_secret


@dataclass(frozen=True)
class Sameness:
    """What is the same to the provider of one type."""

    sets: frozenset[Path] = frozenset()
    """Lists whose order means nothing, `[*]` for any item."""
    caseless: frozenset[Path] = frozenset()
    """Texts that are the same in capital and small letters."""
    ids_caseless: bool = False
    """Whether resource ids (`/subscriptions/...`) are, as Azure's are."""


def comparable(old: Any, new: Any, same: Sameness, path: Path = ()) -> Any:
    """Return `old` with everything that is the same as in `new` written as in `new`.

    The items of a set move to the place of their equals in `new`; None is an item that only `new` has.
    """
    if old == new or is_secret(old) or is_secret(new):
        return old
    if isinstance(old, dict) and isinstance(new, dict):
        return {
            key: comparable(value, new[key], same, (*path, key)) if key in new else value
            for key, value in old.items()
        }
    if isinstance(old, list) and isinstance(new, list):
        if any_item(path) in same.sets:
            return _aligned(old, new, same, path)
        pairs = [comparable(one, two, same, (*path, "[*]")) for one, two in zip(old, new, strict=False)]
        return [*pairs, *old[len(new) :]]
    if isinstance(old, str) and isinstance(new, str) and _same_text(old, new, same, any_item(path)):
        return new
    return old


def _aligned(old: list[Any], new: list[Any], same: Sameness, path: Path) -> list[Any]:
    """Return the items of a set in the order of `new`."""
    item = (*path, "[*]")
    left = list(old)
    placed: list[Any] = []
    for target in new:
        at = next((i for i, each in enumerate(left) if comparable(each, target, same, item) == target), None)
        placed.append(target if at is not None and UNKNOWN not in str(target) else None)
        if placed[-1] is not None and at is not None:
            left.pop(at)
    if not left:
        return placed
    if _scalars(old) and _scalars(new):
        return old  # a reviewer sees both lists whole, so they stay as they are written
    for index, each in enumerate(placed):
        if each is None and left:
            placed[index] = comparable(left.pop(0), new[index], same, item)
    return [*placed, *left]


def _scalars(values: Iterable[Any]) -> bool:
    return not any(isinstance(each, dict | list) for each in values)


def _same_text(old: str, new: str, same: Sameness, path: Path) -> bool:
    if UNKNOWN in new or UNKNOWN in old:
        return False
    if old.lower() == new.lower():
        ids = same.ids_caseless and old.startswith("/") and "/subscriptions/" in old.lower()
        return ids or path in same.caseless
    content, addresses = _document(old), _range(old)
    if content is not None and content == _document(new):
        return True
    return addresses is not None and addresses == _range(new)


def _document(text: str) -> Any:
    """Return the content of a JSON document; None if it is none."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _range(text: str) -> Any:
    """Return a range of addresses, or an IPv6 address; None if it is neither.

    A range whose address has bits beyond its prefix is left alone: providers differ in what they do with it.
    """
    if "/" not in text and ":" not in text:
        return None
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None
