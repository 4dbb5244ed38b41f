"""The options of `--on sky`."""

from __future__ import annotations

from pydantic import Field

from trainfleet.training.launch.options import KubernetesOptions
from trainfleet.training.launch.sky.plan import PlanOptions


class SkyOptions(KubernetesOptions):
    """Which pools are tried, and what the pods get."""

    managed: bool = False
    """A managed job, which SkyPilot restarts elsewhere when its pods are lost."""
    nodes: int = 1
    """Pods of a recipe without GPUs."""
    spot: bool = Field(default=True, title="--spot/--no-spot")
    prices: dict[str, float] = Field(default={}, title="--price")
    """USD per node and hour by STACK/POOL."""
    secrets: tuple[str, ...] = Field(default=(), title="--secret")

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
