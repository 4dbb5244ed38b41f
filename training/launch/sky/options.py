"""The options of `--on sky`."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from trainfleet.training.launch.options import KubernetesOptions
from trainfleet.training.launch.sky.plan import PlanOptions

IDLE_MINUTES = 30
"""How long a long-lived cluster waits for its next run: long enough to edit, short enough for a GPU."""


class SkyOptions(KubernetesOptions):
    """Which pools are tried, and what the pods get."""

    managed: bool = False
    """A managed job, which SkyPilot restarts elsewhere when its pods are lost."""
    nodes: int = Field(default=1, ge=1)
    """Pods of a recipe without GPUs."""
    spot: bool = Field(default=True, title="--spot/--no-spot")
    prices: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default={}, title="--price")
    """USD per node and hour by STACK/POOL."""
    secrets: tuple[str, ...] = Field(default=(), title="--secret")
    cluster: str | None = None
    """A SkyPilot cluster that outlives its runs."""
    idle_s: float = Field(default=IDLE_MINUTES * 60.0, title="--idle")
    """After how long without a run SkyPilot deletes that cluster."""

    @property
    def idle_minutes(self) -> int | None:
        """`--idle` in SkyPilot's unit; None if it was not given, so that a cluster keeps its own."""
        return math.ceil(self.idle_s / 60) if "idle_s" in self.model_fields_set else None

    def plan_options(self, storage: str) -> PlanOptions:
        """The part that decides where a recipe can run. Pods with keys can open any storage."""
        has_keys = bool(self.secrets or self.from_secrets)
        return PlanOptions(
            nodes=self.nodes,
            spot=self.spot,
            prices=self.prices,
            pool=self.pool,
            storage=None if has_keys else storage,
        )
