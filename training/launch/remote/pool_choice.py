"""Which node pool of a platform trains a recipe."""

from __future__ import annotations

from collections.abc import Callable

from trainfleet.errors import Problem
from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput
from trainfleet.suggestions import did_you_mean
from trainfleet.training.recipe.schema import Recipe


def choose_pool(
    recipe: Recipe,
    outputs: PlatformOutputs,
    requested: str | None,
    fits: Callable[[PoolOutput], bool] = lambda _pool: True,
) -> tuple[PoolOutput | None, list[Problem]]:
    """The requested pool, else for GPUs the cheapest that is large enough; None for CPUs on plain nodes.

    A pool whose nodes do not hold the pods (`fits`) is chosen only where there is no other.
    """
    by_name = {pool.name: pool for pool in outputs.pools}
    if requested is not None:
        if requested in by_name:
            return by_name[requested], []
        fix = did_you_mean(requested, by_name) if by_name else "the platform has no pools"
        return None, [Problem("--pool", f"this platform has no pool `{requested}`", fix)]
    if not recipe.scaling.use_gpu or not outputs.name:
        return None, []
    if not by_name:
        fix = "scaling.use_gpu=false, or a platform with a GPU pool"
        return None, [Problem("scaling.use_gpu", f"no pool of {outputs.name} has GPUs", fix)]
    large_enough = [pool for pool in outputs.pools if _nodes(recipe, pool) <= pool.max_nodes]
    if not large_enough:
        most = max(pool.per_node * pool.max_nodes for pool in outputs.pools)
        what = f"no pool of {outputs.name} can have {recipe.scaling.workers} GPUs; the largest has {most}"
        return None, [Problem("scaling.workers", what, f"at most {most}")]
    candidates = [pool for pool in large_enough if fits(pool)] or large_enough
    return min(candidates, key=lambda pool: (_cost(recipe, pool), pool.name)), []


def workers_per_machine(recipe: Recipe, pool: PoolOutput | None) -> int:
    """How many workers share a machine: one for each GPU; one where no GPU is used."""
    return min(pool.per_node, recipe.scaling.workers) if pool is not None and recipe.scaling.use_gpu else 1


def too_many_nodes(recipe: Recipe, pool: PoolOutput | None, machines: str = "nodes") -> list[Problem]:
    """The problem of a recipe that needs more nodes than the pool may have."""
    per_machine = workers_per_machine(recipe, pool)
    count = -(-recipe.scaling.workers // per_machine)
    if pool is None or not count > pool.max_nodes > 0:
        return []
    workers = recipe.scaling.workers
    what = f"{workers} workers need {count} {machines} of pool {pool.name}, which grows to {pool.max_nodes}"
    return [Problem("scaling.workers", what, f"at most {pool.max_nodes * per_machine}, or another pool")]


def _nodes(recipe: Recipe, pool: PoolOutput) -> int:
    return -(-recipe.scaling.workers // min(pool.per_node, recipe.scaling.workers))


def _cost(recipe: Recipe, pool: PoolOutput) -> float:
    """USD per hour of the nodes that the run takes; a pool without a price sorts last."""
    return float("inf") if pool.usd_per_hour is None else _nodes(recipe, pool) * pool.usd_per_hour
