"""Removes what a rehearsal with `--leave` or a killed one left: its objects and its KubeRay operator."""

from __future__ import annotations

import json

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.local_cluster import servers
from trainfleet.local_cluster.start import set_processes
from trainfleet.rehearsal.on_cluster.api import connected
from trainfleet.rehearsal.on_cluster.applier import remove_all
from trainfleet.rehearsal.on_cluster.cluster_target import Target
from trainfleet.rehearsal.on_cluster.inventory import inventory
from trainfleet.rehearsal.on_cluster.operator import SERVER, login


def clean(target: Target) -> list[str]:
    """Remove the leftovers and return them.

    Raises:
        TrainfleetError: the cluster cannot be reached, or something cannot be removed.
    """
    with connected(target) as api:
        ours = [*inventory(api).ours]
        refused = remove_all(api, ours)
    removed = [made.shown for made in ours]
    if target.built_in is not None and (it := target.built_in):
        processes = json.loads(it.file("processes.json").read_text())
        if any(str(login(it)) in part for part in processes[SERVER]["command"]):
            set_processes(it.control_plane, {**processes, SERVER: servers.clients(it)[SERVER].process_spec()})
            removed.append("KubeRay's operator with the stack's flags")
        login(it).unlink(missing_ok=True)
    if refused:
        raise TrainfleetError(
            "some objects could not be removed from the cluster",
            [Problem(target.context, text) for text in refused],
        )
    return removed
