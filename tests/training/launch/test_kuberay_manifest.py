"""The objects of `--on kuberay` are valid for the schemas of KubeRay and Kubernetes, and follow the recipe
and the contract.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.training.launch.kuberay_launches import TLS, outputs, run_spec
from trainfleet.infra.kubernetes.crds import definitions
from trainfleet.rehearsal.simulation.custom_resources import schema_mistakes, schemas_of
from trainfleet.rehearsal.simulation.kubernetes.metadata import metadata_mistakes
from trainfleet.rehearsal.simulation.kubernetes.model import _check_template
from trainfleet.training.launch.kuberay.manifest import (
    cluster_spec,
    ray_cluster,
    ray_job,
    ray_service,
    render,
    run_objects,
    submitted_job,
)
from trainfleet.training.recipe.load import load_recipe

SCHEMAS = {
    kind: schema for definition in definitions("1.6.0") for kind, schema in schemas_of(definition).items()
}

RUNS = {
    "any cluster": lambda: run_spec(context="kind", namespace="training", image="me/trainfleet:1"),
    "cpu": run_spec,
    "gpu": lambda: run_spec("scaling.use_gpu=true", "scaling.workers=4"),
    "rdma": lambda: run_spec(
        "scaling.use_gpu=true",
        "scaling.workers=16",
        "batch.global_batch=64",
        "batch.micro_batch=4",
        pool="h100",
    ),
    "elastic": lambda: run_spec("scaling.workers=4", "scaling.min_workers=2", platform=outputs(queue="")),
    "elastic in a queue": lambda: run_spec("scaling.workers=4", "scaling.min_workers=2"),
    "long-lived": lambda: run_spec(cluster="shared-ray"),
    "store of one's own": lambda: run_spec(
        env={"TRAINFLEET_S3_ENDPOINT": "https://10.0.0.5:9000", "AWS_REGION": "here"}
    ),
    "control store in Redis": lambda: run_spec(redis="redis://10.0.0.7", redis_secret="redis-password"),
    "long-lived with Redis": lambda: run_spec(cluster="shared-ray", redis="redis://10.0.0.7"),
    "with secrets": lambda: run_spec(from_secrets=("s3-keys",)),
}
CASES = pytest.mark.parametrize("case", sorted(RUNS))


def objects_of(case: str) -> list[dict[str, Any]]:
    return run_objects(RUNS[case]())


def templates(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod template in an object."""
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}) if isinstance(value.get("spec"), dict) else False:
            yield value
        for member in value.values():
            yield from templates(member)
    elif isinstance(value, list):
        for member in value:
            yield from templates(member)


def containers(template: dict[str, Any]) -> list[dict[str, Any]]:
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


@CASES
def test_every_port_names_its_protocol(case: str) -> None:
    """Kueue never starts a RayJob with one that does not, where KubeRay's definitions have no default for it."""
    for document in objects_of(case):
        for template in templates(document):
            for container in containers(template):
                assert all(port["protocol"] == "TCP" for port in container.get("ports", [])), container[
                    "name"
                ]


@CASES
def test_every_object_is_valid_for_its_schema(case: str) -> None:
    for document in objects_of(case):
        assert [str(each) for each in metadata_mistakes(document["kind"], document["metadata"])] == []
        if document["apiVersion"] == "ray.io/v1":
            assert [
                str(each) for each in schema_mistakes(SCHEMAS[f"ray.io/v1:{document['kind']}"], document)
            ] == []


@CASES
def test_every_pod_template_is_valid_for_the_core_schema(case: str) -> None:
    found = [each for document in objects_of(case) for each in templates(document)]
    assert found
    for template in found:
        assert [str(each) for each in _check_template("template", template)] == []


@CASES
def test_pods_pass_pod_security_restricted(case: str) -> None:
    for template in (each for document in objects_of(case) for each in templates(document)):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert {key for volume in spec["volumes"] for key in volume} <= {
            "name",
            "emptyDir",
            "configMap",
            "projected",
            "secret",
            "persistentVolumeClaim",
        }
        for container in containers(template):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"]["drop"] == ["ALL"]
            assert "add" not in security["capabilities"]


@CASES
def test_each_volume_mount_has_a_volume_in_its_pod(case: str) -> None:
    for template in (each for document in objects_of(case) for each in templates(document)):
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        assert {
            mount["name"] for container in containers(template) for mount in container.get("volumeMounts", [])
        } <= volumes


@CASES
def test_the_head_trains_nothing(case: str) -> None:
    for document in objects_of(case):
        spec = (
            document["spec"].get("rayClusterSpec") or document["spec"]
            if document["kind"] in ("RayJob", "RayCluster")
            else {}
        )
        if "headGroupSpec" in spec:
            assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
            head = spec["headGroupSpec"]["template"]["spec"]["containers"][0]
            assert "nvidia.com/gpu" not in json.dumps(head["resources"])


@CASES
def test_yaml_equals_the_objects(case: str) -> None:
    objects = objects_of(case)
    assert list(yaml.safe_load_all(render(objects))) == objects


def test_workers_request_the_resources_of_the_recipe_and_the_pool() -> None:
    (group,) = ray_job(RUNS["gpu"]())["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    spec = group["template"]["spec"]
    assert group["rayStartParams"]["num-gpus"] == "4"
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (1, 1, 1)
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert spec["nodeSelector"] == {"trainfleet.io/pool": "l4"}, "the cheaper pool is chosen"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]


def test_rdma_adds_its_resource_networks_and_environment() -> None:
    (group,) = ray_job(RUNS["rdma"]())["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    template = group["template"]
    assert group["replicas"] == 2
    assert template["spec"]["containers"][0]["resources"]["limits"] == {
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "32",
    }
    assert template["metadata"]["annotations"]["example.com/network"] == "fast"
    assert {"name": "FI_PROVIDER", "value": "efa"} in template["spec"]["containers"][0]["env"]


def test_an_elastic_run_uses_rays_autoscaler_and_in_a_queue_only_ray_train() -> None:
    free, queued = (
        ray_job(RUNS[case]())["spec"]["rayClusterSpec"] for case in ("elastic", "elastic in a queue")
    )
    assert free["enableInTreeAutoscaling"] is True
    assert (free["workerGroupSpecs"][0]["minReplicas"], free["workerGroupSpecs"][0]["maxReplicas"]) == (2, 4)
    assert "enableInTreeAutoscaling" not in queued, "Kueue admits a whole run and rejects one that grows"
    assert queued["workerGroupSpecs"][0]["minReplicas"] == 4


def test_the_run_has_its_queue_and_priority() -> None:
    labels = ray_job(RUNS["cpu"]())["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "training"
    assert labels["kueue.x-k8s.io/priority-class"] == "trainfleet-normal"
    assert not any("kueue" in key for key in ray_job(RUNS["any cluster"]())["metadata"]["labels"])


def test_what_outlives_a_run_is_in_the_queue_and_a_run_on_it_is_not_queued_again() -> None:
    run = run_spec(cluster="shared-ray")
    label = ("kueue.x-k8s.io/queue-name", "training")
    service = ray_service(run, "serve", source="s3://b/runs/x", which="best", limits={})
    for document in (ray_cluster(run), service):
        assert label in document["metadata"]["labels"].items(), document["kind"]
        # Kueue rejects a cluster that grows by itself, and a worker group of this name.
        cluster = document["spec"].get("rayClusterConfig", document["spec"])
        assert "enableInTreeAutoscaling" not in cluster
        assert "head" not in {each["groupName"] for each in cluster["workerGroupSpecs"]}
    assert label not in ray_job(run)["metadata"]["labels"].items()
    assert (
        label
        not in ray_cluster(run_spec(cluster="a", platform=outputs(queue="")))["metadata"]["labels"].items()
    )


def test_pods_have_the_workload_identity_and_no_cluster_token() -> None:
    for template in templates(ray_job(RUNS["cpu"]())["spec"]["rayClusterSpec"]):
        assert template["metadata"]["labels"]["azure.workload.identity/use"] == "true"
        assert template["spec"]["serviceAccountName"] == "trainer"
        assert template["spec"]["automountServiceAccountToken"] is False


def test_the_submitter_has_the_workload_identity_with_which_it_opens_the_storage() -> None:
    for run in (run_spec(), run_spec(cluster="shared-ray")):
        labels = ray_job(run)["spec"]["submitterPodTemplate"]["metadata"]["labels"]
        assert labels["azure.workload.identity/use"] == "true"


@pytest.mark.parametrize("options", [{}, {"redis": "redis://10.0.0.7"}])
def test_only_the_head_of_an_elastic_run_has_a_cluster_token(options: dict[str, str]) -> None:
    run = run_spec("scaling.workers=4", "scaling.min_workers=2", platform=outputs(queue=""), **options)
    head, *others = templates(cluster_spec(run))
    assert head["spec"]["automountServiceAccountToken"] is True
    assert {each["spec"]["automountServiceAccountToken"] for each in others} == {False}


def test_ray_authenticates_by_token_and_certificate() -> None:
    spec = ray_job(RUNS["cpu"]())["spec"]["rayClusterSpec"]
    assert spec["authOptions"] == {"mode": "token"}
    for template in templates(spec):
        first, ray = template["spec"]["initContainers"][0], template["spec"]["containers"][0]
        assert first["name"] == "certificate", (
            "before the init container of KubeRay, which connects to the head"
        )
        assert {each["name"]: each.get("value") for each in ray["env"]}.items() >= TLS["environment"].items()
        assert "/etc/ray/setup" not in {mount["mountPath"] for mount in ray["volumeMounts"]}, (
            "the token for the signer belongs to the init container"
        )
        assert not [volume for volume in template["spec"]["volumes"] if "secret" in volume]


def test_the_autoscaler_has_the_certificate_too() -> None:
    options = ray_job(RUNS["elastic"]())["spec"]["rayClusterSpec"]["autoscalerOptions"]
    assert {"name": "RAY_USE_TLS", "value": "1"} in options["env"]
    assert options["volumeMounts"] == [{"name": "ray-tls", "mountPath": "/etc/ray/tls", "readOnly": True}]


def test_kuberay_stops_a_run_whose_machines_do_not_start() -> None:
    assert ray_job(run_spec(within_s=120))["spec"]["preRunningDeadlineSeconds"] == 150


def test_a_long_lived_cluster_is_created_once_and_runs_are_submitted_to_it() -> None:
    kinds = [(each["kind"], each["metadata"]["name"]) for each in objects_of("long-lived")]
    assert kinds == [
        ("ConfigMap", "shared-ray"),
        ("RayCluster", "shared-ray"),
        ("PodDisruptionBudget", "shared-ray"),
        ("RayJob", "tf-lm-tiny"),
        ("ConfigMap", "tf-lm-tiny"),
    ]
    spec = ray_job(RUNS["long-lived"]())["spec"]
    assert spec["clusterSelector"] == {"ray.io/cluster": "shared-ray"}
    assert not {"rayClusterSpec", "backoffLimit", "shutdownAfterJobFinishes"} & spec.keys(), (
        "KubeRay rejects them together with clusterSelector"
    )


def test_the_manifest_holds_the_whole_recipe() -> None:
    files = objects_of("cpu")[-1]["data"]
    assert yaml.safe_load(files["recipe.yaml"]) == load_recipe(
        "lm-tiny", ["storage=s3://prod-runs/runs"]
    ).model_dump(mode="json")
    variables = json.loads(files["job.json"])["env"]
    assert variables["TRAINFLEET_EVENTS"] == "stdout"
    assert variables["TRAINFLEET_STOP_FILE"].endswith(variables["TRAINFLEET_LAUNCH"]), (
        "a long-lived cluster has many runs"
    )


def test_no_variable_of_the_job_overrides_a_key_of_the_recipe() -> None:
    """TRAINFLEET_STEPS sets `steps`. No variable of the launcher may do so."""
    variables = submitted_job(RUNS["elastic"]()).env
    before = load_recipe("lm-tiny", [], {})
    assert load_recipe("lm-tiny", [], variables) == before


def test_keys_of_this_machine_are_not_in_the_manifest() -> None:
    planted = {
        "AWS_ACCESS_KEY_ID": "AKIAPLANTED",
        "AWS_SECRET_ACCESS_KEY": "planted-secret",
        "AZURE_STORAGE_ACCOUNT_KEY": "planted-key",
    }
    output = render(run_objects(run_spec(env={**planted, "AWS_ENDPOINT_URL": "https://10.0.0.5:9000"})))
    assert not any(value in output for value in planted.values())
    assert "https://10.0.0.5:9000" in output


def test_secrets_are_only_referenced() -> None:
    ray = ray_job(RUNS["with secrets"]())["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"][
        "spec"
    ]["containers"][0]
    assert ray["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
    token = next(each for each in ray["env"] if each["name"] == "HF_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hf-token", "key": "value", "optional": True}


def test_a_private_certificate_authority_is_passed_without_its_key(tmp_path: Any) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text(
        "-----BEGIN CERTIFICATE-----\nAAA\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\nBBB\n-----END PRIVATE KEY-----\n"
    )
    output = run_objects(
        run_spec(env={"AWS_ENDPOINT_URL": "https://10.0.0.5:9000", "AWS_CA_BUNDLE": str(bundle)})
    )
    assert "AAA" in output[-1]["data"]["ca.crt"]
    assert "BBB" not in render(output)


def test_the_service_uses_the_same_pods() -> None:
    document = ray_service(
        RUNS["gpu"](),
        "lm",
        source="s3://prod-runs/runs/lm",
        which="best",
        limits={"queue": 8},
        precision="bf16",
    )
    assert [str(each) for each in schema_mistakes(SCHEMAS["ray.io/v1:RayService"], document)] == []
    (application,) = yaml.safe_load(document["spec"]["serveConfigV2"])["applications"]
    assert application["args"] == {
        "source": "s3://prod-runs/runs/lm",
        "which": "best",
        "replicas": 4,
        "gpu": True,
        "limits": {"queue": 8},
        "precision": "bf16",
    }
    assert document["spec"]["rayClusterConfig"] == ray_job(RUNS["gpu"]())["spec"]["rayClusterSpec"]


def test_every_case_differs_from_every_other() -> None:
    """Each of the cases above tests something else."""
    output = {case: re.sub(r"[0-9a-f]{16}", "", render(objects_of(case))) for case in RUNS}
    assert all(one != other for one, other in itertools.combinations(output.values(), 2))


def test_a_worker_waits_for_the_port_of_the_head() -> None:
    groups = ray_job(run_spec())["spec"]["rayClusterSpec"]
    assert "args" not in groups["headGroupSpec"]["template"]["spec"]["containers"][0]
    (asked,) = groups["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["args"]
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
    script = f"{asked.replace('/6379', f'/{port}')} && echo started"
    waits = subprocess.Popen(
        ["bash", "-c", script],
        env={"FQ_RAY_IP": "127.0.0.1", "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            waits.wait(1)
        with socket.create_server(("127.0.0.1", port)):
            assert waits.communicate(timeout=30)[0] == "started\n"
    finally:
        os.killpg(waits.pid, signal.SIGKILL)  # what runs next to Ray ends with the container
