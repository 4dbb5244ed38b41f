"""What a run's machines cost, as its limit in USD counts it."""

from __future__ import annotations

from collections.abc import Mapping

from trainfleet.errors import Problem
from trainfleet.infra.outputs.contract import PoolOutput
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime.events import USD_PER_HOUR


def usd_per_hour(pool: PoolOutput | None, machines: int) -> float | None:
    """The price of the workers' machines, for whole machines; None if the contract has none."""
    if pool is None or pool.usd_per_hour is None:
        return None
    return round(pool.usd_per_hour * machines, 6)


def unpriced(recipe: Recipe, price: float | None, place: str) -> list[Problem]:
    """Why the limit in USD could not be kept."""
    if recipe.limits.max_usd is None or price is not None:
        return []
    what = f"the price of {place} is not in the contract"
    return [Problem("limits.max_usd", what, "limits.max_hours, or leave it out")]


def price_variable(price: float | None) -> Mapping[str, str]:
    """The variable by which the run knows its price."""
    return {} if price is None else {USD_PER_HOUR: str(price)}
