"""Returns how SkyPilot itself reads a task, in its own process and home: `python inspect_sky.py < REQUEST >
ANSWER`.

Only what needs a cluster is replaced: the list of nodes, and that Kubernetes is enabled. The request holds
the configuration, the kubeconfig, the task and the nodes by context; the caller sets HOME. The answer lists
the candidates in the order in which SkyPilot tries them, each with the pod that it creates.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock


def main() -> None:
    order = json.load(sys.stdin)
    home = Path.home()
    for file, text in order["files"].items():
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(text)

    import sky
    from sky import check, clouds
    from sky.optimizer import Optimizer
    from sky.provision.kubernetes import utils

    def nodes(*, context: str | None = None) -> list[Any]:
        return [utils.V1Node.from_dict(each) for each in order["nodes"].get(context, [])]

    kubernetes = clouds.Kubernetes()
    patches = (
        mock.patch.object(utils, "get_kubernetes_nodes", nodes),
        mock.patch.object(check, "get_cached_enabled_clouds_or_refresh", return_value=[kubernetes]),
        # SkyPilot reads the node pools from Google otherwise.
        mock.patch.object(
            utils.GKEAutoscaler, "can_create_new_instance_of_type", classmethod(lambda *_: True)
        ),
    )
    for patch in patches:
        patch.start()
    answers = {}
    for name, document in order["tasks"].items():
        tried, blocked = [], []
        for _ in range(20):
            task = sky.Task.from_yaml_config(json.loads(json.dumps(document)))
            with sky.Dag() as dag:
                dag.add(task)
            try:
                Optimizer.optimize(dag, blocked_resources=blocked, quiet=True)
            except sky.exceptions.ResourcesUnavailableError:
                break
            best = task.best_resources
            tried.append(
                {
                    "context": best.region,
                    "gpus": best.accelerators,
                    "cost": best.get_cost(3600),
                    "pod": pod_of(best, task.num_nodes),
                }
            )
            # As the backend of SkyPilot does when a candidate has no capacity.
            blocked.append(best.copy(zone=None))
        answers[name] = {"tried": tried, "yaml": task.to_yaml_config()}
    sys.stdout.write("\n" + json.dumps(answers, default=str) + "\n")


def pod_of(resources: Any, nodes: int) -> dict[str, Any]:
    """The pod that SkyPilot creates from its template and configuration."""
    from sky import clouds
    from sky.provision.kubernetes import utils
    from sky.utils import resources_utils

    name = resources_utils.ClusterName("tf-test", "tf-test")
    values = resources.cloud.make_deploy_resources_variables(
        resources, name, clouds.Region(resources.region), None, nodes, dryrun=True
    )
    pod = {"spec": {"containers": [{"name": "ray-node"}]}, "metadata": {}}
    cluster = {"available_node_types": {"ray_head_default": {"node_config": pod}}}
    merged = utils.combine_pod_config_fields(
        cluster, resources.cluster_config_overrides, resources.cloud, resources.region
    )
    keys = (
        "timeout",
        "k8s_acc_label_key",
        "k8s_acc_label_values",
        "k8s_service_account_name",
        "k8s_kueue_local_queue_name",
        "image_id",
    )
    keys += (
        "k8s_namespace",
        "cpus",
        "memory",
        "k8s_cpu_limit",
        "k8s_memory_limit",
        "k8s_network_type",
        "accelerator_count",
    )
    found = merged["available_node_types"]["ray_head_default"]["node_config"]
    return {
        "values": {key: values.get(key) for key in keys},
        "pod": json.loads(json.dumps(found, default=str)),
    }


if __name__ == "__main__":
    main()
    sys.stdout.flush()
