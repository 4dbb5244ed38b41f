"""The message from the launcher to the follower of a run by SkyPilot."""

from __future__ import annotations

from typing import Any

from trainfleet.training.launch.remote.follower import FollowerSpec


class SkySpec(FollowerSpec):
    """A task, and where it is tried."""

    task: dict[str, Any]
    cluster: str
    """The name of the SkyPilot cluster, or of the managed job."""
    run: str
    managed: bool
    contexts: dict[str, str]
    """The contexts of the kubeconfig that are tried, with the namespace in each."""
    left_out: list[str]
    """The pools that are not tried, with reasons."""
