"""Platforms and launches for the tests of `--on kuberay`: the contract that a stack writes, with changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainfleet.infra.outputs.contract import CONTRACT_VERSION, PlatformOutputs
from trainfleet.training.launch.kuberay.launcher import KubeRay
from trainfleet.training.launch.kuberay.options import KubeRayOptions
from trainfleet.training.launch.kuberay.run_spec import RunSpec, resolve
from trainfleet.training.launch.platform_outputs import NamedPlatform
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe

GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
TLS = {
    "signer": "https://ray-signer.ray-certificates.svc:8443/sign",
    "audience": "ray-signer.trainfleet",
    "ca_config": "ray-ca",
    "ca_secret": "",
    "ca_mount": "",
    "config": "ray-tls",
    "config_mount": "/etc/ray/setup",
    "script": "certificate.py",
    "mount": "/etc/ray/tls",
    "environment": {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": "/etc/ray/tls/tls.crt",
        "RAY_TLS_SERVER_KEY": "/etc/ray/tls/tls.key",
        "RAY_TLS_CA_CERT": "/etc/ray/tls/ca.crt",
    },
}


def pool(name: str, **changes: Any) -> dict[str, Any]:
    """A node pool in the contract."""
    return {
        "name": name,
        "kind": "nodes",
        "accelerator": "L4",
        "per_node": 4,
        "instance_type": "g6.12xlarge",
        "min_nodes": 0,
        "max_nodes": 2,
        "spot": False,
        "node_selector": {"trainfleet.io/pool": name},
        "tolerations": [GPU_TAINT],
        "pod_annotations": {},
        "environment": {},
        "rdma": "none",
        "rdma_resource": "",
        "rdma_nics": 0,
        "gpu_memory_gib": 24.0,
        "pod_cpus": 0.0,
        "pod_memory_gib": 0.0,
        "usd_per_hour": 4.6,
        "groups": [],
        "one_group_label": "",
        "queue_annotations": {},
        "pod_template": {},
        **changes,
    }


EFA = pool(
    "h100",
    accelerator="H100",
    per_node=8,
    instance_type="p5.48xlarge",
    gpu_memory_gib=80.0,
    usd_per_hour=55.04,
    rdma="efa",
    rdma_resource="vpc.amazonaws.com/efa",
    rdma_nics=32,
    environment={"FI_PROVIDER": "efa"},
    pod_annotations={"example.com/network": "fast"},
)


def outputs(**changes: Any) -> PlatformOutputs:
    """A platform with two pools, a queue, priorities and TLS."""
    document: dict[str, Any] = {
        "contract_version": CONTRACT_VERSION,
        "trainfleet_version": "0.1.0",
        "name": "prod",
        "cloud": "aws",
        "account": "111122223333",
        "region": "us-east-2",
        "environment": "prod",
        "kube_context": "prod",
        "kubeconfig": "{}",
        "bucket_url": "s3://prod-runs",
        "storage_secret": "",
        "registry": "",
        "image": "registry.example/trainfleet:1",
        "namespace": "training",
        "service_account": "trainer",
        "training_identity": "role",
        "pod_labels": {"azure.workload.identity/use": "true"},
        "queue": "training",
        "priority_classes": ["trainfleet-high", "trainfleet-normal", "trainfleet-low"],
        "launcher_account": "launcher",
        "launcher_token_secret": "launcher-token",
        "autoscaler": "generic",
        "shared_volume": "shared",
        "secrets": ["hf-token"],
        "pools": [pool("l4"), EFA],
        "ray_version": "2.60.0",
        "ray_tls": True,
        "ray_token_auth": True,
        "ray_certificates": TLS,
        "ray_redis": None,
    }
    return PlatformOutputs.model_validate(document | changes)


def run_spec(
    *overrides: str,
    env: dict[str, str] | None = None,
    platform: PlatformOutputs | None = None,
    **options: Any,
) -> RunSpec:
    """A launch of `lm-tiny` on a platform, resolved."""
    recipe, target = launch(*overrides, platform=platform, **options)
    return resolve(recipe, target, KubeRay().options(target), env or {})


def launch(
    *overrides: str, platform: PlatformOutputs | None = None, job: str = "", **options: Any
) -> tuple[Recipe, Target]:
    """A recipe and the target of its launch."""
    recipe = load_recipe("lm-tiny", ["storage=s3://prod-runs/runs", *overrides])
    found = (NamedPlatform(platform or outputs(), Path("outputs.json")),)
    platforms = found if options.get("context") is None else ()
    request = Request("lm-tiny", on="kuberay", job=job, options=KubeRayOptions(**options))
    return recipe, Target(request, platforms, Path("runs/lm-tiny"))
