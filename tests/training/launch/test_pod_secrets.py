"""The Secrets that the pods of KubeRay and SkyPilot get as environment variables."""

from __future__ import annotations

from tests.training.launch.kuberay_launches import outputs, run_spec
from trainfleet.training.launch.kuberay.manifest import ray_job
from trainfleet.training.launch.sky.config import context_config


def test_a_library_finds_its_secret_under_its_own_variable() -> None:
    """wandb reads WANDB_API_KEY; a secret's name in capitals would be WANDB_KEY alone."""
    run = run_spec(platform=outputs(secrets=["hf-token", "wandb-key"]))
    head = ray_job(run)["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    context = context_config(outputs(secrets=["hf-token", "wandb-key"]))
    (sky,) = context["pod_config"]["spec"]["containers"]
    for container in (head, sky):
        found = {
            each["name"]: each["valueFrom"]["secretKeyRef"]["name"]
            for each in container["env"]
            if "secretKeyRef" in each.get("valueFrom", {}) and each["name"] != "RAY_AUTH_TOKEN"
        }
        assert found == {"HF_TOKEN": "hf-token", "WANDB_KEY": "wandb-key", "WANDB_API_KEY": "wandb-key"}


def test_the_keys_of_a_platforms_store_reach_every_pod() -> None:
    run = run_spec(platform=outputs(storage_secret="s3-keys"), from_secrets=("mine",))
    cluster = ray_job(run)["spec"]["rayClusterSpec"]
    pods = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for pod in pods:
        sources = pod["template"]["spec"]["containers"][0]["envFrom"]
        assert [each["secretRef"]["name"] for each in sources] == ["s3-keys", "mine"]
