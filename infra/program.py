"""The program of every stack: load the spec, build the cloud, install the cluster layer, export
the outputs.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import pulumi

from trainfleet import __version__
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.infra.catalog.regions import at
from trainfleet.infra.cloud_support import support
from trainfleet.infra.kubernetes import install, names
from trainfleet.infra.kubernetes.features import layer_features
from trainfleet.infra.kubernetes.scripts.ray_signer.server import SIGN_PATH
from trainfleet.infra.outputs.contract import CONTRACT_VERSION
from trainfleet.infra.platform import (
    SHARED_CLAIM,
    TRAINING_NAMESPACE,
    TRAINING_SERVICE_ACCOUNT,
    Platform,
    Pool,
)
from trainfleet.infra.spec.load import parse_spec
from trainfleet.infra.spec.node_group import CAPACITY_LABEL, POOL_LABEL
from trainfleet.infra.spec.schema import Capacity, PlatformSpec
from trainfleet.infra.spec.stack_file import PLATFORM_PATH, project_root, read_stack
from trainfleet.infra.spec.topology_levels import placement
from trainfleet.pydantic_messages import Path

GARBAGE_AFTER = 200_000
"""New objects between garbage collections; Python's default is 700."""
GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def run() -> None:
    """Build the platform of the selected stack.

    Raises:
        RunError: the stack's spec is invalid. The engine prints its text without a traceback.
    """
    # The program keeps almost all its objects, and garbage collection took half of a preview.
    gc.set_threshold(GARBAGE_AFTER)
    try:
        data = pulumi.Config("trainfleet").require_object("platform")
        spec = parse_spec(data, locate=locate, warn=lambda problem: pulumi.log.warn(str(problem)))
        platform = support(spec.cloud).builder()(spec)
        install(platform, spec)
    except (TrainfleetError, pulumi.ConfigMissingError, pulumi.ConfigTypeError) as error:
        raise pulumi.RunError(str(error)) from error
    pulumi.export("platform", outputs(platform, spec))


def locate(path: Path) -> str:
    """The line of a path in the stack file; the file alone if the config is from elsewhere."""
    stack = pulumi.get_stack()
    try:
        return read_stack(stack, project_root()).locate(PLATFORM_PATH + path)
    except InputError:
        return f"stacks/Pulumi.{stack}.yaml"


def outputs(platform: Platform, spec: PlatformSpec) -> Mapping[str, Any]:
    """The contract's `PlatformOutputs`. Values that are known only after the apply remain Pulumi outputs."""
    training, installed = platform.identities.get("training"), layer_features(platform, spec)
    return {
        "contract_version": CONTRACT_VERSION,
        "trainfleet_version": __version__,
        "name": spec.name,
        "cloud": str(spec.cloud),
        "account": spec.account,
        "region": spec.region,
        "environment": spec.environment,
        "kube_context": platform.kube_context,
        "kubeconfig": platform.kubeconfig,
        "bucket_url": platform.bucket_url,
        "storage_secret": spec.storage.secret,
        "registry": platform.registry,
        "image": image(platform.registry, spec),
        "namespace": TRAINING_NAMESPACE,
        "service_account": TRAINING_SERVICE_ACCOUNT,
        "training_identity": training.cloud_identity if training else "",
        "pod_labels": training.labels if training else {},
        "pod_template": {"head": spec.pod_template.head, "workers": spec.pod_template.workers},
        # NOTE: only if the layer installs one. A job in a queue that does not exist waits forever.
        "queue": names.QUEUE if installed.queue else "",
        "priority_classes": sorted(names.PRIORITIES, key=names.PRIORITIES.__getitem__, reverse=True)
        if installed.priority_classes
        else [],
        "launcher_account": names.LAUNCHER_ACCOUNT if installed.launcher_access else "",
        "launcher_token_secret": names.LAUNCHER_TOKEN if installed.launcher_token else "",
        "autoscaler": platform.autoscaler,
        "shared_volume": SHARED_CLAIM if platform.shared_filesystem else "",
        "secrets": list(spec.secrets.names),
        "pools": [pool_output(groups, spec.region) for groups in platform.groups_by_pool()],
        "ray_version": spec.ray.version,
        "ray_tls": spec.ray.tls,
        "ray_token_auth": spec.ray.token_auth,
        "ray_certificates": ray_certificates() if installed.certificates != "none" else None,
        "ray_redis": ray_redis(spec),
    }


def ray_redis(spec: PlatformSpec) -> Mapping[str, Any] | None:
    """The Redis for Ray's control store, as the contract's `RayRedis`."""
    redis = spec.ray.redis
    if redis.mode == "none":
        return None
    own = redis.mode == "in-cluster"
    address = f"redis://{names.REDIS}.{TRAINING_NAMESPACE}.svc:{names.REDIS_PORT}" if own else redis.address
    secret = names.REDIS if own else redis.password_secret
    return {"address": address, "password_secret": secret, "password_key": names.REDIS_PASSWORD_KEY}


def ray_certificates() -> Mapping[str, Any]:
    """How a Ray pod gets its certificate, as the contract's `RayCertificates`."""
    return {
        "signer": f"https://{names.RAY_SIGNER_HOST}:{names.RAY_SIGNER_PORT}{SIGN_PATH}",
        "audience": names.RAY_SIGNER_AUDIENCE,
        "ca_config": names.RAY_CA,
        "ca_secret": "",
        "ca_mount": "",
        "config": names.RAY_TLS_CONFIG,
        "config_mount": names.RAY_TLS_CONFIG_MOUNT,
        "script": names.RAY_TLS_SCRIPT,
        "mount": names.RAY_TLS_MOUNT,
        "environment": names.RAY_TLS_ENVIRONMENT,
    }


def image(registry: pulumi.Input[str], spec: PlatformSpec) -> pulumi.Input[str]:
    """The image of training pods: the spec's, else this release's in the platform's registry, else a local
    one.
    """
    if spec.ray.image:
        return spec.ray.image
    if registry == "":
        return f"trainfleet:{__version__}"
    return pulumi.Output.concat(registry, ":", __version__)


def pool_output(groups: tuple[Pool, ...], region: str = "") -> Mapping[str, Any]:
    """One pool as the contract's `PoolOutput`, with the price of a region. All groups have the same machine
    and fabric.
    """
    first = groups[0]
    machine, capacity = at(first.machine, region, first.spec.capacity), first.spec.capacity
    node = support(machine.cloud).allocatable(machine)
    tolerations = [GPU_TOLERATION, *(each for group in groups for each in group.tolerations)]
    return {
        "name": first.spec.pool,
        "kind": first.spec.kind,
        "accelerator": first.spec.accelerator,
        "per_node": first.spec.per_node,
        "instance_type": machine.instance_type,
        "min_nodes": sum(group.spec.min_nodes for group in groups),
        "max_nodes": first.spec.max_nodes,
        "spot": any(group.spec.capacity is Capacity.SPOT for group in groups),
        "node_selector": node_selector(first),
        "tolerations": [each for index, each in enumerate(tolerations) if each not in tolerations[:index]],
        "pod_annotations": first.pod_annotations,
        "environment": first.environment,
        "rdma": first.fabric,
        "rdma_resource": first.rdma_resource,
        "rdma_nics": machine.rdma_nics if first.fabric != "none" else 0,
        "gpu_memory_gib": machine.gpu_memory_gib,
        "pod_cpus": node.cpus,
        "pod_memory_gib": node.memory_gib,
        "usd_per_hour": machine.usd_per_hour(capacity),
        "groups": [group_output(group, region) for group in groups if group.spec.preferences],
        "one_group_label": CAPACITY_LABEL if stays_in_one_group(first) else "",
        "queue_annotations": placement(first.spec, first.machine),
        "pod_template": first.spec.pod_template,
    }


def stays_in_one_group(group: Pool) -> bool:
    """Whether the workers of a run must not use several groups of the pool.

    Placement groups and policies are of one group each, and InfiniBand of Azure connects the machines of one
    scale set (CycleCloud documentation, availability sets). Such groups have one zone, so that the capacity
    names the group.
    """
    return bool(group.spec.preferences) and (group.spec.compact or group.fabric != "none")


def group_output(group: Pool, region: str) -> Mapping[str, Any]:
    """One node group as the contract's `NodeGroupOutput`."""
    capacity = group.spec.capacity
    return {
        "name": group.spec.name,
        "capacity": capacity.value,
        "zone": group.zones[0] if len(group.zones) == 1 else "",
        "node_selector": group.spec.capacity_label,
        "spot": capacity is Capacity.SPOT,
        "max_nodes": group.spec.max_nodes,
        "usd_per_hour": at(group.machine, region, capacity).usd_per_hour(capacity),
    }


def node_selector(pool: Pool) -> dict[str, str]:
    """The node selector of this pool: the platform's pool label if nodes have it, else the labels of the
    spec, plus the labels of healthy nodes.
    """
    own = {POOL_LABEL: pool.labels[POOL_LABEL]} if POOL_LABEL in pool.labels else pool.labels
    return {**own, **pool.selector}
