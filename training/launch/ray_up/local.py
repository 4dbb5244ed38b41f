"""Hosts that are there already, as Ray's launcher reaches them by ssh. Used by `document`; like its siblings
`aws`, `gcp` and `azure`.

Easy to get wrong: Ray reaches the workers from the head, with the key that it copies there; it knows no types
of hosts and scales
nothing, and `ray down` stops Ray on the head alone, so `follow` stops it on the workers.
"""

from __future__ import annotations

from trainfleet.training.launch.ray_up.cluster_yaml import Document
from trainfleet.training.launch.ray_up.run_spec import Site


def provider(site: Site) -> Document:
    """The hosts: the head, and those that train."""
    return {"type": "local", "head_ip": site.hosts[0], "worker_ips": list(site.hosts[1:])}


def auth(site: Site) -> Document:  # noqa: ARG001 - the siblings have the same arguments
    """Beside user and key: without a key ssh's own are used, on the head too."""
    return {}


def node_types(site: Site) -> Document:  # noqa: ARG001 - the siblings have the same arguments
    """Ray calls every host the same and finds out what it has."""
    return {}


def login(site: Site) -> list[str]:  # noqa: ARG001 - the siblings have the same arguments
    """Whoever runs hosts has told their Docker where it may pull."""
    return []


def head_setup(site: Site) -> list[str]:  # noqa: ARG001 - the siblings have the same arguments
    """Nothing: no machines are made."""
    return []
