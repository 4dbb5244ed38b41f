"""GPU hours that runs held and trained, from their records: what `trainfleet runs cost` knows, as hours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainfleet.training.runs.listing import RunInfo
from trainfleet.training.runs.machine_time import MachineTime, machine_times


@dataclass(frozen=True)
class RunHours:
    """What one run held on one platform in one month."""

    run: str
    owner: str
    pool: str
    """Empty if the record does not say it."""
    held_gpu_hours: float
    """Of whole nodes."""
    trained_gpu_hours: float | None
    """In steps, validations and checkpoints; None for a run of an older version."""


def hours_of(runs: Iterable[RunInfo], platform: str, month: str) -> list[RunHours]:
    """Return the GPU hours of the runs on a platform in a month (`2026-11`, UTC), the most first."""
    found: dict[tuple[str, str, str], list[tuple[float, float | None]]] = {}
    for run in runs:
        for time in machine_times(run.record, run.launch):
            part = time.by_month().get(month)
            facts = time.launch.get("platform")
            if part is None or not isinstance(facts, Mapping) or facts.get("name") != platform:
                continue
            pool = _pool(time, facts)
            key = run.name, str(time.launch.get("owner") or ""), str(pool.get("name") or "")
            found.setdefault(key, []).append(_gpu_hours(part, pool))
    rows = [
        RunHours(
            *key,
            sum(held for held, _ in parts),
            None if any(each is None for _, each in parts) else sum(each or 0.0 for _, each in parts),
        )
        for key, parts in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.held_gpu_hours, row.run))


def _pool(time: MachineTime, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pool of a launch: the only one of the platform, or the only one with the run's price."""
    found = facts.get("pools")
    pools = [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
    if len(pools) > 1:
        pools = [each for each in pools if _costs(each, time)]
    return pools[0] if len(pools) == 1 else {}


def _costs(pool: Mapping[str, Any], time: MachineTime) -> bool:
    """Return whether the machines of a launch cost as much as whole nodes of a pool."""
    price = pool.get("usd_per_hour")
    if not isinstance(price, int | float) or time.usd_per_hour is None:
        return False
    nodes = math.ceil(_count(time.launch.get("workers")) / _count(pool.get("per_node")))
    return math.isclose(price * nodes, time.usd_per_hour, abs_tol=1e-5)


def _gpu_hours(time: MachineTime, pool: Mapping[str, Any]) -> tuple[float, float | None]:
    workers, per_node = _count(time.launch.get("workers")), _count(pool.get("per_node"))
    held = math.ceil(workers / per_node) * per_node
    trained = None if time.trained_s is None else workers * time.trained_s / 3600
    return held * time.held_s / 3600, trained


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1
