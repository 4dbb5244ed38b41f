"""Deletes the machines of a Ray cluster from its head, with Ray's own providers and the head's identity.

`ray down` is made for a launcher's machine: it resolves the cluster file again, which creates keys and roles,
and reaches each machine by ssh. The file on the head is resolved already: its autoscaler uses it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainfleet.training.launch.ray_up.cluster_yaml import FOLDER

Document = dict[str, Any]
RAY_STOP = ("ray", "stop", "--force")
POLL_S = 5.0
WORKERS_S = 600.0
"""How long the workers may take to be gone. The head is deleted only then, because it deletes them."""
RELEASED_AFTER_MINUTES = 1
TUNNEL = "bash -c while true; do sleep 86400; done"
"""The process on the head that keeps a `ray dashboard` connected (ray 2.60, command_runner.py). It stays
if the ssh client of the connection is killed.
"""
END_TUNNELS = f"for each in $(pgrep -u $(id -u) -fx '{TUNNEL}'); do pkill -P $each; kill $each; done"


def release_workers(file: Path) -> None:
    """Let the autoscaler delete idle workers. It reads `file` again before each of its decisions.

    (ray/autoscaler/v2/autoscaler.py, `refresh_cached_autoscaling_config`.)
    """
    config: Document = json.loads(file.read_text(encoding="utf-8"))
    config["idle_timeout_minutes"] = RELEASED_AFTER_MINUTES
    for kind in config.get("available_node_types", {}).values():
        kind["min_workers"] = 0
    changed = file.with_name(f"{file.name}.new")
    changed.touch(mode=0o600)
    changed.write_text(json.dumps(config), encoding="utf-8")
    os.replace(changed, file)


def delete(file: Path) -> None:
    """Delete all machines of the cluster, this one last. On hosts, stop Ray and remove the run's files.

    Raises:
        TimeoutError: the workers are not gone in time; the head is kept.
        Exception: what the cloud's client raises.
    """
    config: Document = json.loads(file.read_text(encoding="utf-8"))
    provider = config["provider"]
    if provider["type"] == "local":
        subprocess.run(["bash", "-c", cleanup_of(config)], check=True, timeout=WORKERS_S)
        return
    # First, because the autoscaler would replace the workers.
    subprocess.run(RAY_STOP, check=False, timeout=WORKERS_S)
    from ray.autoscaler._private.providers import _get_node_provider

    cloud = _get_node_provider(provider, config["cluster_name"])
    if provider["type"] == "azure" and provider["resource_group"] == f"ray-{config['cluster_name']}":
        # One request, which Azure completes without the head. A head that deletes itself machine by machine
        # leaves its disk and its address, because they can be deleted only after it.
        cloud.resource_client.resource_groups.begin_delete(provider["resource_group"])
        return
    _delete_in_order(cloud)


def _delete_in_order(cloud: Any) -> None:
    from ray.autoscaler.tags import NODE_KIND_HEAD, NODE_KIND_WORKER, TAG_RAY_NODE_KIND

    deadline = time.monotonic() + WORKERS_S
    while workers := cloud.nodes_for_teardown({TAG_RAY_NODE_KIND: NODE_KIND_WORKER}):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(workers)} workers are not deleted")
        cloud.terminate_nodes(workers)
        time.sleep(POLL_S)
    cloud.terminate_nodes(cloud.nodes_for_teardown({TAG_RAY_NODE_KIND: NODE_KIND_HEAD}))


def cleanup_of(config: Document) -> str:
    """The command on the head that cleans up the hosts of a cluster file."""
    return cleanup_command(
        config["cluster_name"],
        config["provider"]["worker_ips"],
        config["auth"]["ssh_user"],
        docker=bool(config.get("docker")),
        stop_files="/tmp/trainfleet-stop-*",
    )


def cleanup_command(
    name: str, workers: Sequence[str], ssh_user: str, *, docker: bool, stop_files: str
) -> str:
    """The command on the head that cleans up hosts. The head is first: it would restart the workers."""
    ours = f"~/{FOLDER} ~/ray_bootstrap_config.yaml /tmp/trainfleet-{name} {stop_files}"
    remove = f"rm -rf {ours}; rmdir --ignore-fail-on-non-empty ~/{FOLDER.partition('/')[0]}"
    options = (
        "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=20 -o LogLevel=ERROR"
    )
    key = "$(test -f ~/ray_bootstrap_key.pem && echo -i ~/ray_bootstrap_key.pem)"
    stop = "true" if docker else "ray stop --force"
    on_worker = f"bash --login -i -c '{stop}; {remove}'"
    each = f'for host in {" ".join(workers)}; do ssh {options} {key} {ssh_user}@$host "{on_worker}"; done'
    return f"{stop}; {END_TUNNELS}; {each}; rm -f ~/ray_bootstrap_key.pem; {remove}"
