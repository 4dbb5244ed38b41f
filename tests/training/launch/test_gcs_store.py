"""GCS fault tolerance of `--on kuberay`: when it is on, and what the Ray cluster then has."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.launch.kuberay_launches import launch, outputs, run_spec
from trainfleet.errors import InputError
from trainfleet.training.launch.kuberay.launcher import KubeRay
from trainfleet.training.launch.kuberay.manifest import cluster_spec, disruption_budget, submitted_job
from trainfleet.training.launch.kuberay.run_spec import RunSpec, resolve
from trainfleet.training.launch.remote import submit
from trainfleet.training.launch.remote.ray_job import JOB_FILE, RECIPE_FILE

OWN = {
    "address": "redis://ray-redis.training.svc:6379",
    "password_secret": "ray-redis",
    "password_key": "password",
}
CA = "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n"


def served(**options: Any) -> RunSpec:
    """A RayService on a platform with its own Redis."""
    recipe, target = launch(platform=outputs(ray_redis=OWN), **options)
    return resolve(recipe, target, KubeRay().options(target), {}, serving=True)


@pytest.mark.parametrize(
    ("options", "run", "service"),
    [
        ({}, "", OWN["address"]),
        ({"gcs_fault_tolerance": "always"}, OWN["address"], OWN["address"]),
        ({"gcs_fault_tolerance": "never"}, "", ""),
        ({"redis": "10.0.0.7"}, "redis://10.0.0.7:6379", "redis://10.0.0.7:6379"),
        ({"redis": "rediss://r.example:6380"}, "rediss://r.example:6380", "rediss://r.example:6380"),
    ],
)
def test_a_service_uses_the_platforms_redis_and_a_run_only_if_asked(
    options: dict[str, Any], run: str, service: str
) -> None:
    found = run_spec(platform=outputs(ray_redis=OWN), **options)
    assert (found.gcs_store.address if found.gcs_store else "") == run
    serving = served(**options)
    assert (serving.gcs_store.address if serving.gcs_store else "") == service
    assert not serving.driver_pod


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gcs_fault_tolerance": "always"}, "the platform has no Redis"),
        ({"gcs_fault_tolerance": "never", "redis": "r"}, "does nothing with --gcs-fault-tolerance never"),
        ({"redis_secret": "keys"}, "is the password of --redis"),
        ({"redis": "redis://me:key@r:6379"}, "has a password"),
        ({"redis": "redis://localhost:6379"}, "in a pod, localhost is the pod"),
        ({"redis": "http://r:6379"}, "is not the address of a Redis"),
        ({"redis": "redis://r:70000"}, "is not the address of a Redis"),
        ({"redis": "redis://r:6379/0"}, "is not the address of a Redis"),
    ],
)
def test_a_mistake_in_the_options_is_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        run_spec(**options)
    assert says in str(error.value)


def test_a_run_has_a_pod_for_its_driver_that_the_head_does_not_take_along() -> None:
    run = run_spec(redis="redis://10.0.0.7:6379", redis_secret="redis-password")
    spec = cluster_spec(run)
    assert spec["gcsFaultToleranceOptions"] == {
        "redisAddress": "redis://10.0.0.7:6379",
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "redis-password", "key": "password"}}},
    }
    workers, drivers = spec["workerGroupSpecs"]
    assert (drivers["replicas"], drivers["rayStartParams"]["num-cpus"]) == (1, "0")
    assert json.loads(drivers["rayStartParams"]["resources"].strip("'")) == {"driver": 1}
    assert submitted_job(run).resources == {"driver": 0.001}
    # A rank is placed on a node with CPUs, and a drain leaves all pods but one.
    assert workers["rayStartParams"]["num-cpus"] != "0"
    assert disruption_budget(run)["spec"]["minAvailable"] == run.pods + 1
    assert submitted_job(run_spec()).resources == {}


def test_workers_wait_for_a_head_that_knows_them_as_long_as_kuberay_lets_them() -> None:
    run = run_spec(redis="redis://10.0.0.7:6379")
    for group in cluster_spec(run)["workerGroupSpecs"]:
        names = {each["name"] for each in group["template"]["spec"]["containers"][0]["env"]}
        # KubeRay sets ten minutes unless the pod has the variable (pod.go, configureGCSFaultTolerance).
        assert "RAY_gcs_rpc_server_reconnect_timeout_s" not in names


def test_the_cleanup_job_needs_nothing_that_is_deleted_with_the_run(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text(CA)
    env = {"TRAINFLEET_S3_ENDPOINT": "https://10.0.0.5:9000", "AWS_CA_BUNDLE": str(file)}
    for options, mounted in (({"redis": "redis://10.0.0.7"}, False), ({}, True)):
        run = run_spec(env=env, **options)
        head = cluster_spec(run)["headGroupSpec"]["template"]["spec"]
        assert ("files" in {volume["name"] for volume in head["volumes"]}) == mounted


class Client:
    """A job server whose job has failed."""

    def __init__(self, error: str) -> None:
        self.error, self.deleted = error, []  # type: ignore[var-annotated]

    def get_job_info(self, name: str) -> Any:
        return SimpleNamespace(error_type=self.error)

    def delete_job(self, name: str) -> None:
        self.deleted.append(name)


@pytest.mark.parametrize(
    ("resources", "error", "again"),
    [
        ({"driver": 0.001}, "JOB_SUPERVISOR_ACTOR_DIED", True),
        ({"driver": 0.001}, "JOB_ENTRYPOINT_COMMAND_ERROR", False),
        ({}, "JOB_SUPERVISOR_ACTOR_DIED", False),
    ],
)
def test_a_job_whose_driver_pod_was_lost_is_submitted_again(
    tmp_path: Path, resources: dict[str, float], error: str, again: bool
) -> None:
    job = {"entrypoint": "true", "env": {}, "metadata": {}, "resources": resources}
    (tmp_path / JOB_FILE).write_text(json.dumps(job))
    (tmp_path / RECIPE_FILE).write_text("")
    client = Client(error)
    submitter = submit.Submitter("127.0.0.1:8265", "run", tmp_path)
    assert submitter._driver_was_lost(client) == again
    assert client.deleted == (["run"] if again else [])
