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
