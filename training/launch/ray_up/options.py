"""The options of `--on ray-up`."""

from __future__ import annotations

from pydantic import Field

from trainfleet.training.launch.options import RemoteOptions


class RayUpOptions(RemoteOptions):
    """Which machines, and what they get."""

    cluster: str | None = None
    """A long-lived Ray cluster to train on."""
    secrets: tuple[str, ...] = Field(default=(), title="--secret")
    write: str | None = None
    """Write the cluster file there, and start nothing."""
    spec: str | None = None
    """A stack's spec, for a stack that was never applied."""
    hosts: tuple[str, ...] = Field(default=(), title="--host")
    identity: str = ""
    zone: str = ""
    machine_image: str = ""
    ssh_user: str = ""
    ssh_key: str = ""
    idle_s: float | None = Field(default=None, gt=0, title="--idle")
    """After how long without a run the head deletes the machines; None: the default of their kind."""

    def place(self) -> dict[str, str]:
        """How the Ray cluster is found again, as far as options decide it."""
        found = {
            "cluster": self.cluster or "",
            "hosts": ",".join(self.hosts),
            "zone": self.zone,
            "ssh_user": self.ssh_user,
            "ssh_key": self.ssh_key,
        }
        return {key: value for key, value in found.items() if value}
