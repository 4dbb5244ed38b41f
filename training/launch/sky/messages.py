"""The message from the launcher to the follower of a run by SkyPilot."""

from __future__ import annotations

from typing import Any

from trainfleet.training.launch.remote.follower import FollowerSpec
from trainfleet.training.launch.remote.platform_objects import PlatformObject
from trainfleet.training.launch.remote.workload_check import WorkloadCheck


class SkySpec(FollowerSpec):
    """A task, and where it is tried."""

    task: dict[str, Any]
    cluster: str
    """The name of the SkyPilot cluster, or of the managed job."""
    run: str
    managed: bool
    kept: bool = False
    """Whether the cluster outlives the run."""
    server: str = ""
    """The address of a team's server, without a password; empty for the one on this machine."""
    idle_minutes: int | None = None
    """After how long without a task SkyPilot deletes the pods; None: as the cluster has it."""
    selector: str
    """The label that selects the pods."""
    contexts: dict[str, str]
    """The contexts of the kubeconfig that are tried, with the namespace in each."""
    required: dict[str, list[PlatformObject]]
    """By context: what the pods refer to."""
    checks: dict[str, WorkloadCheck] = {}
    """By context: what validates the workload before SkyPilot is asked."""
    left_out: list[str]
    """The pools that are not tried, with reasons."""

    @property
    def follow_command(self) -> str:
        """The command that follows the run from where it was launched."""
        return f"trainfleet runs attach {self.run}"

    def end_command(self, job: int | None = None) -> str:
        """SkyPilot's command that ends the run and deletes its pods, unless its cluster outlives it."""
        if self.managed:
            return "sky jobs cancel " + (f"--name {self.cluster}" if job is None else str(job))
        if self.kept:
            return f"sky cancel {self.cluster}" + ("" if job is None else f" {job}")
        return f"sky down {self.cluster}"

    def how_to_follow(self, job: int | None) -> list[str]:
        """Lines for the user of a run that the launcher no longer follows."""
        number = "" if job is None else f" {job}"
        what = f"managed job{number} of SkyPilot," if self.managed else f"job{number} on SkyPilot's cluster"
        return [
            f"{what} {self.cluster}",
            f"follow it  {self.follow_command}",
            f"stop it    trainfleet runs stop {self.run}",
        ]
