"""The options of `--on sky`."""

from __future__ import annotations

from pydantic import Field

from trainfleet.training.launch.options import RemoteOptions
from trainfleet.training.launch.sky.plan import PlanOptions


class SkyOptions(RemoteOptions):
    """Which pools are tried, and what the pods get."""

    context: str | None = None
    """A context of the kubeconfig, for a cluster that no stack describes."""
    namespace: str | None = None
    managed: bool = False
    """A managed job, which SkyPilot restarts elsewhere when its pods are lost."""
    nodes: int = 1
    """Pods of a recipe without GPUs."""
    spot: bool = Field(default=True, title="--spot/--no-spot")
    prices: dict[str, float] = Field(default={}, title="--price")
    """USD per node and hour by STACK/POOL."""
    secrets: tuple[str, ...] = Field(default=(), title="--secret")
    from_secrets: tuple[str, ...] = Field(default=(), title="--from-secret")

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

    def place(self) -> dict[str, str]:
        """The context and namespace, if given."""
        found = {"context": self.context, "namespace": self.namespace}
        return {key: value for key, value in found.items() if value}
