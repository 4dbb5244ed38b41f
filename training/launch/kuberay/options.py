"""The options of `--on kuberay`."""

from __future__ import annotations

from trainfleet.training.launch.options import KubernetesOptions, When


class KubeRayOptions(KubernetesOptions):
    """Which cluster, and what its pods get."""

    cluster: str | None = None
    """A long-lived Ray cluster to train on."""
    gcs_fault_tolerance: When = "auto"
    """Whether a new head continues with the workers of a lost one; auto: for `serve`, or with `redis`."""
    redis: str | None = None
    """The address of a Redis for Ray's control store; None: the platform's."""
    redis_secret: str | None = None
    """The Secret with the password of `redis`."""
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
