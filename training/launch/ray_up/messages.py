"""The message from the launcher to the follower of a run on VMs or hosts."""

from __future__ import annotations

from trainfleet.training.launch.remote.follower import Detached, FollowerSpec
from trainfleet.training.launch.remote.ray_job import RayJob

SPEC = "follower.json"
"""Where the message stays next to the cluster file, for `trainfleet runs`."""


class RayUpSpec(FollowerSpec):
    """A run and its Ray cluster."""

    file: str
    """The cluster file."""
    name: str
    """The Ray cluster's name."""
    cloud: str
    stays: bool
    """Whether the machines outlive the run."""
    job: str
    launch: str
    nodes: int
    hosts: list[str]
    ssh_user: str
    docker: bool
    submit: RayJob
    paid_for: list[str]
    """Lines for the user: the machines, their price, and until when they run."""
    detached: Detached

    @property
    def submission_id(self) -> str:
        """The id of the run's job on Ray. Machines that stay keep the jobs of earlier launches."""
        return f"{self.job}-{self.launch[:8]}" if self.stays else self.job
