"""Existing hosts for Ray's launcher, reached by ssh.

Ray reaches the workers from the head, with the key that it copies there. `ray down` stops Ray on the head
only, so `follow` stops it on the workers.
"""

from __future__ import annotations

from trainfleet.training.launch.ray_up.cluster_yaml import Document
from trainfleet.training.launch.ray_up.run_spec import RunSpec


def provider(run: RunSpec) -> Document:
    """The head, and the hosts that train."""
    return {"type": "local", "head_ip": run.hosts[0], "worker_ips": list(run.hosts[1:])}


def auth(run: RunSpec) -> Document:  # noqa: ARG001 - every cloud has the same arguments
    """In addition to user and key: without a key ssh uses its own, on the head too."""
    return {}


def node_types(run: RunSpec) -> Document:  # noqa: ARG001 - every cloud has the same arguments
    """None: Ray gives every host the same type and detects its resources."""
    return {}


def login(run: RunSpec) -> list[str]:  # noqa: ARG001 - every cloud has the same arguments
    """None: Docker on the hosts is already logged in."""
    return []
