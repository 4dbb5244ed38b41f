"""The options of `--on kuberay`."""

from __future__ import annotations

from trainfleet.training.launch.options import KubernetesOptions


class KubeRayOptions(KubernetesOptions):
    """Which cluster, and what its pods get."""

    cluster: str | None = None
    """A long-lived Ray cluster to train on."""
    attach: bool = False
    """Follow a run that exists; set by `trainfleet runs attach`."""
    launch: str | None = None
    """The launch to attach to."""

    @property
    def follows_only(self) -> bool:
        """Whether this is `trainfleet runs attach`."""
        return self.attach

    @property
    def followed_launch(self) -> str | None:
        """The launch that it attaches to."""
        return self.launch
