"""Kubernetes API validation of quantities: requests, limits, capacities and limit ranges.

Source: kubernetes pkg/apis/core/validation/validation.go. Values that are not known yet are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.kubernetes.object_access import as_map
from trainfleet.rehearsal.simulation.kubernetes_types import amount
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.suggestions import did_you_mean

_RESOURCES = ("cpu", "memory", "ephemeral-storage", "storage")


def resources_mistakes(path: str, resources: Any, *, extended: bool) -> Iterator[Mistake]:
    """Yield the mistakes in requests and limits. `extended`: of a container, which may request devices."""
    if not isinstance(resources, dict):
        return
    for name in ("requests", "limits"):
        yield from quantities_mistakes(f"{path}.{name}", resources.get(name), known=extended)
    requests, limits = as_map(resources.get("requests")), as_map(resources.get("limits"))
    for name, limit in limits.items():
        most = amount(limit)
        least = amount(requests[name]) if name in requests else None
        if most is not None and least is not None and least > most:
            yield Mistake(
                f'{path}.requests["{name}"]',
                f"{requests[name]!r} is more than the limit, which is {limit!r}",
                "a request is at most the limit",
            )
        elif extended and most is not None and least is not None and "/" in name and least != most:
            yield Mistake(
                f'{path}.requests["{name}"]',
                f"{requests[name]!r} differs from the limit, which is {limit!r}",
                "a device's request equals its limit",
            )
    for name in requests:
        if extended and "/" in name and name not in limits and isinstance(resources.get("limits", {}), dict):
            yield Mistake(
                f'{path}.limits["{name}"]', "missing, because it is requested", "a device needs a limit"
            )


def quantities_mistakes(path: str, values: Any, *, known: bool = False) -> Iterator[Mistake]:
    """Yield the mistakes in quantities by resource name. `known`: reject unknown resource names."""
    for name, value in as_map(values).items():
        where = f'{path}["{name}"]'
        if value in (None, UNKNOWN) or isinstance(value, dict):
            continue
        number = amount(value)
        if number is None:
            yield no_quantity(where, value)
        elif number < 0:
            yield Mistake(where, f"{value!r} is negative", "a quantity is at least 0")
        elif known and "/" in name and number != int(number):
            yield Mistake(where, f"{value!r} is not a whole number", "devices come whole")
        if known and "/" not in name and not name.startswith("hugepages-") and name not in _RESOURCES:
            yield Mistake(where, "unknown resource", did_you_mean(name, _RESOURCES))


def no_quantity(path: str, value: Any) -> Mistake:
    """Return the mistake for a value that is not a quantity."""
    return Mistake(path, f"{value!r} is not a quantity", "it must be like 500m, 4, 8Gi or 200M")


_ORDER = ("min", "defaultRequest", "default", "max")


def limit_order(where: str, limit: dict[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in a limit range: min, request, limit and max out of order, or missing limits.

    Source: core/validation, ValidateLimitRange.
    """
    for low, high in combinations(_ORDER, 2):
        for name, value in as_map(limit.get(low)).items():
            less, more = amount(value), amount(as_map(limit.get(high)).get(name))
            if less is not None and more is not None and less > more:
                yield Mistake(
                    f'{where}.{low}["{name}"]',
                    f"{value!r} is more than `{high}`, which is {limit[high][name]!r}",
                    "put them in order",
                )
    if limit.get("type") == "Pod":
        for name in ("default", "defaultRequest"):
            if limit.get(name):
                yield Mistake(
                    f"{where}.{name}", "is not allowed for a Pod", "defaults belong to the type Container"
                )
    if limit.get("type") == "PersistentVolumeClaim" and not any(
        "storage" in as_map(limit.get(name)) for name in ("min", "max")
    ):
        yield Mistake(f"{where}.max", "missing: the least or most storage", "as in {'storage': '1Ti'}")
