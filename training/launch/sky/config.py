"""A platform's entry in SkyPilot's configuration (`kubernetes.context_configs`), from its outputs. Pure.

Settings of one pool (node selector, tolerations, fabric) are in the task instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput, RayCertificates
from trainfleet.training.launch.remote.priority import choose_priority
from trainfleet.training.launch.remote.ray_certificate import (
    certificate_container,
    certificate_mount,
    certificate_volumes,
)
from trainfleet.training.launch.remote.secret_variables import secret_variables
from trainfleet.training.launch.remote.storage_env import SHARED_MOUNT

SCALE_UP_S = 1200
"""How long a pod may wait for a node that must be created: a GPU node needs 5 to 10 minutes with its driver.
"""
FIXED_S = 120
"""The same where no node can be added."""
RAY_SETTINGS = "TRAINFLEET_RAY_SETTINGS"
"""Variables for the run's Ray, as NAME=VALUE separated by spaces.

NOTE: variables of the pod reach SkyPilot's own Ray too, which does not use TLS, so only the task unpacks
    them.
"""
GKE = "gke_"
"""SkyPilot parses project, location and cluster from such a context's name, so it must be kept."""
SHARED_VOLUME = "trainfleet-shared"


def context_name(outputs: PlatformOutputs) -> str:
    """The kubeconfig context of a platform for SkyPilot.

    Clusters of two clouds may have the same name, so the region is appended, except where SkyPilot parses the
    name.
    """
    name = outputs.kube_context
    if (
        name.startswith(GKE)
        or not outputs.launcher_account
        or name.endswith(f"-{outputs.region}")
        or not outputs.region
    ):
        return name
    return f"{name}-{outputs.region}"


def context_config(outputs: PlatformOutputs) -> dict[str, Any]:
    """The platform's entry in `kubernetes.context_configs`."""
    scales = bool(outputs.autoscaler) and any(pool.max_nodes > pool.min_nodes for pool in outputs.pools)
    found: dict[str, Any] = {
        "namespace": outputs.namespace,
        # SkyPilot then creates no roles of its own, and pods have the platform's cloud identity.
        "remote_identity": outputs.service_account,
        "provision_timeout": SCALE_UP_S if scales else FIXED_S,
        # It would limit CPUs too, and throttle SkyPilot's start and the data loaders on an idle node. The
        # task limits memory only, and gives its Ray the number of CPUs.
        "set_pod_resource_limits": False,
    }
    if outputs.autoscaler:
        found["autoscaler"] = outputs.autoscaler
    if outputs.queue:
        # No time limit: a run may wait for its share of a full cluster. SkyPilot's timeout is paused
        # meanwhile.
        found["kueue"] = {"local_queue_name": outputs.queue, "admission_timeout": -1}
    if prices := accelerator_prices(outputs.pools):
        found["pricing"] = {"accelerators": prices}
    found["pod_config"] = pod_config(outputs)
    return found


def accelerator_prices(pools: Iterable[PoolOutput]) -> dict[str, float]:
    """USD per GPU and hour by SkyPilot's name, of the cheapest pool: SkyPilot has one price per context and
    GPU.
    """
    prices: dict[str, float] = {}
    for pool in pools:
        if pool.usd_per_hour is not None and pool.per_node:
            price = round(pool.usd_per_hour / pool.per_node, 5)
            prices[pool.accelerator] = min(price, prices.get(pool.accelerator, price))
    return dict(sorted(prices.items()))


def pod_config(outputs: PlatformOutputs) -> dict[str, Any]:
    """The settings of every pod of the platform, on any pool."""
    container: dict[str, Any] = {"imagePullPolicy": "IfNotPresent"}
    spec: dict[str, Any] = {"containers": [container]}
    mounts: list[dict[str, Any]] = []
    volumes: list[dict[str, Any]] = []
    environment = secret_variables(outputs.secrets)
    if priority := choose_priority(outputs.priority_classes, None)[0]:
        spec["priorityClassName"] = priority
    if outputs.ray_certificates is not None:
        environment.append({"name": RAY_SETTINGS, "value": ray_settings(outputs.ray_certificates)})
        mounts.append(certificate_mount(outputs.ray_certificates))
        spec["initContainers"] = [certificate_container(outputs.ray_certificates, outputs.image)]
        volumes += certificate_volumes(outputs.ray_certificates)
    if outputs.shared_volume:
        mounts.append({"name": SHARED_VOLUME, "mountPath": SHARED_MOUNT})
        claim = {"claimName": outputs.shared_volume}
        volumes.append({"name": SHARED_VOLUME, "persistentVolumeClaim": claim})
    if volumes:
        container["volumeMounts"], spec["volumes"] = mounts, volumes
    if environment:
        container["env"] = environment
    if outputs.storage_secret:
        container["envFrom"] = [{"secretRef": {"name": outputs.storage_secret}}]
    found: dict[str, Any] = {"spec": spec}
    if outputs.pod_labels:
        found["metadata"] = {"labels": dict(outputs.pod_labels)}
    return found


def ray_settings(certificates: RayCertificates) -> str:
    """The value of RAY_SETTINGS."""
    return " ".join(f"{key}={value}" for key, value in sorted(certificates.environment.items()))


def merged(
    user: Mapping[str, Any], contexts: Mapping[str, Mapping[str, Any]], *, managed: bool = False
) -> dict[str, Any]:
    """The user's configuration with these contexts in it.

    Other keys that the user set for these contexts are kept; the rest of the document is not changed. With
    `managed`, the controllers of managed jobs become processes of the API server unless the user configured
    them: as pods they would download kubectl. Not by default, because SkyPilot starts a dozen of them, which
        use
    gigabytes.
    """
    document: dict[str, Any] = {**user}
    kubernetes = dict(document.get("kubernetes") or {})
    allowed = kubernetes.get("allowed_contexts") or []
    if allowed != "all":
        kubernetes["allowed_contexts"] = [*allowed, *(name for name in contexts if name not in allowed)]
    configs = dict(kubernetes.get("context_configs") or {})
    for name, ours in contexts.items():
        configs[name] = {**(configs.get(name) or {}), **ours}
    kubernetes["context_configs"] = configs
    document["kubernetes"] = kubernetes
    jobs = dict(document.get("jobs") or {})
    if managed and "controller" not in jobs:
        document["jobs"] = {**jobs, "controller": {"consolidation_mode": True}}
    return document
