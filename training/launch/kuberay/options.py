"""The options of `--on kuberay`."""

from __future__ import annotations

from pydantic import Field

from trainfleet.training.launch.options import RemoteOptions


class KubeRayOptions(RemoteOptions):
    """Which cluster, and what its pods get."""

    context: str | None = None
    """A context of the kubeconfig, for a cluster that no stack describes."""
    namespace: str | None = None
    cluster: str | None = None
    """A long-lived Ray cluster to train on."""
    from_secrets: tuple[str, ...] = Field(default=(), title="--from-secret")
    attach: bool = False
    """Follow a run that exists; set by `trainfleet runs attach`."""
    launch: str | None = None
    """The launch to attach to."""

    @property
    def follows_only(self) -> bool:
        """Whether this is `trainfleet runs attach`."""
        return self.attach

    def place(self) -> dict[str, str]:
        """The context and namespace, if given."""
        found = {"context": self.context, "namespace": self.namespace}
        return {key: value for key, value in found.items() if value}
