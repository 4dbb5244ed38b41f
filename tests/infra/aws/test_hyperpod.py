"""The request for a HyperPod cluster: what it says for a spec, and that a mistake in it is found here and not
by AWS after an hour.
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.infra.aws.platforms import platform
from trainfleet.infra.aws.hyperpod import SCRIPT, cluster_request, health_checks, placeholder_inputs
from trainfleet.infra.aws.hyperpod_request import Cluster
from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.schema import GpuPool
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.project_lookup import stack_settings
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearse

STEADY = {
    "name": "steady",
    "accelerator": "H100",
    "per_node": 8,
    "min_nodes": 2,
    "max_nodes": 2,
    "kind": "hyperpod",
}
PLAN = "arn:aws:sagemaker:us-east-2:111122223333:training-plan/my-plan"
# The simulated provider reads every class of the SDK, the old ones too, and those warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TAGS = {"team": "ml", "Name": "lab-hyperpod"}


def requested(**changes: Any) -> dict[str, Any]:
    spec = platform(gpu_pools=[{**STEADY, **changes}])
    document: dict[str, Any] = json.loads(cluster_request(spec, TAGS, placeholder_inputs(spec)).json_text())
    return document


def test_a_cluster_recovers_its_nodes_by_itself_on_the_platforms_own_eks() -> None:
    request = requested()
    assert (request["NodeRecovery"], request["ClusterName"]) == ("Automatic", "trainfleet-lab")
    assert request["Orchestrator"] == {
        "Eks": {"ClusterArn": "arn:aws:eks:us-east-2:111122223333:cluster/trainfleet-lab"}
    }
    assert request["Tags"] == [{"Key": "Name", "Value": "lab-hyperpod"}, {"Key": "team", "Value": "ml"}]


def test_a_group_is_the_pool_with_the_labels_and_the_taint_of_every_gpu_pool() -> None:
    (group,) = requested(disk_gib=500, labels={"example.com/team": "ml"})["InstanceGroups"]
    assert (group["InstanceGroupName"], group["InstanceType"], group["InstanceCount"]) == (
        "steady",
        "ml.p5.48xlarge",
        2,
    )
    assert group["KubernetesConfig"]["Taints"] == [
        {"Key": "nvidia.com/gpu", "Value": "present", "Effect": "NoSchedule"}
    ]
    assert group["KubernetesConfig"]["Labels"] == {
        "example.com/team": "ml",
        "k8s.amazonaws.com/accelerator": "h100",
        "nvidia.com/gpu.present": "true",
        "skypilot.co/accelerator": "h100",
        "trainfleet.io/pool": "steady",
    }
    assert group["InstanceStorageConfigs"][0]["EbsVolumeConfig"]["VolumeSizeInGB"] == 500
    assert "TrainingPlanArn" not in group


def test_a_training_plan_is_named_where_the_pool_is_reserved() -> None:
    (group,) = requested(capacity="reserved", reservation=PLAN)["InstanceGroups"]
    assert group["TrainingPlanArn"] == PLAN


@pytest.mark.parametrize(
    ("changes", "checks"),
    [
        ({}, ["InstanceStress"]),
        ({"interconnect": "best", "compact": True}, ["InstanceStress", "InstanceConnectivity"]),
        ({"interconnect": "best", "compact": True, "min_nodes": 1, "max_nodes": 1}, ["InstanceStress"]),
    ],
)
def test_every_node_is_stressed_and_its_fabric_tried_where_there_is_another_node(
    changes: dict[str, Any], checks: list[str]
) -> None:
    pool = GpuPool.model_validate({**STEADY, **changes})
    assert health_checks(pool, machine_for_pool(Cloud.AWS, pool)) == checks


def test_a_compact_group_lies_in_one_zone_and_another_in_all() -> None:
    assert len(requested(compact=True)["InstanceGroups"][0]["OverrideVpcConfig"]["Subnets"]) == 1
    assert len(requested()["InstanceGroups"][0]["OverrideVpcConfig"]["Subnets"]) == 2


def test_the_request_is_the_same_whatever_the_order_of_tags() -> None:
    spec = platform(gpu_pools=[STEADY])
    turned = dict(reversed(TAGS.items()))
    assert (
        cluster_request(spec, TAGS, placeholder_inputs(spec)).json_text()
        == cluster_request(spec, turned, placeholder_inputs(spec)).json_text()
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("ClusterName", "trainfleet-"),
        ("ClusterName", "x" * 64),
        ("ClustrName", "x"),
        ("NodeRecovery", "Auto"),
        ("NodeProvisioningMode", "Continous"),
        ("Orchestrator.Eks.ClusterArn", "trainfleet-lab"),
        ("VpcConfig.Subnets", []),
        ("VpcConfig.SecurityGroupIds", [f"sg-{index}" for index in range(6)]),
        ("Tags", [{"Key": "a", "Value": "b"}] * 51),
        ("Tags.0.Key", "a?"),
        ("InstanceGroups", []),
        ("InstanceGroups.0.InstanceType", "p5.48xlarge"),
        ("InstanceGroups.0.InstanceCount", -1),
        ("InstanceGroups.0.InstanceCont", 2),
        ("InstanceGroups.0.ExecutionRole", "role"),
        ("InstanceGroups.0.ThreadsPerCore", 3),
        ("InstanceGroups.0.TrainingPlanArn", "cr-0123456789abcdef0"),
        ("InstanceGroups.0.LifeCycleConfig.SourceS3Uri", "bucket/hyperpod"),
        ("InstanceGroups.0.LifeCycleConfig.OnCreate", ""),
        ("InstanceGroups.0.OnStartDeepHealthChecks", ["Stress"]),
        ("InstanceGroups.0.InstanceStorageConfigs.0.EbsVolumeConfig.VolumeSizeInGB", 20000),
        ("InstanceGroups.0.KubernetesConfig.Labels", {"-bad": "x"}),
        ("InstanceGroups.0.KubernetesConfig.Labels", {"team": ""}),
        ("InstanceGroups.0.KubernetesConfig.Labels", {f"l{index}": "x" for index in range(51)}),
        ("InstanceGroups.0.KubernetesConfig.Taints.0.Effect", "NO_SCHEDULE"),
    ],
)
def test_a_mistake_in_the_request_is_refused_by_its_place(path: str, value: Any) -> None:
    document = copy.deepcopy(requested())
    Cluster.model_validate(document)
    place: Any = document
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in steps:
        place = place[step]
    place[last] = value
    with pytest.raises(ValidationError) as caught:
        Cluster.model_validate(document)
    assert all(".".join(map(str, error["loc"])).startswith(path) for error in caught.value.errors())


def test_two_groups_of_one_name_are_refused() -> None:
    document = requested()
    document["InstanceGroups"] *= 2
    with pytest.raises(ValidationError, match="one name"):
        Cluster.model_validate(document)


def test_the_lifecycle_script_is_a_script_that_ends_well_where_nothing_is_as_it_expects() -> None:
    text = SCRIPT.read_text()
    assert text.startswith("#!/bin/bash\n")
    assert (
        subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True, text=True, check=False).stderr == ""
    )
    moved = (
        re.sub(r"/var/log/provision", "$HOME/log", text)
        .replace("/opt/", "$HOME/opt/")
        .replace("/etc/", "$HOME/etc/")
    )
    assert (
        subprocess.run(
            ["bash", "-c", moved],
            capture_output=True,
            check=False,
            env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"},
        ).returncode
        == 0
    )


def test_containers_go_to_the_large_disk(tmp_path: Path) -> None:
    config = tmp_path / "etc" / "eks" / "containerd" / "containerd-config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('version = 3\nroot = "/var/lib/containerd"\nstate = "/run/containerd"\n')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mountpoint").write_text(
        '#!/bin/sh\ncase "$2" in *sagemaker) exit 0;; *) exit 1;; esac\n'
    )
    (tmp_path / "bin" / "mountpoint").chmod(0o755)
    moved = (
        SCRIPT.read_text()
        .replace("/var/log/provision", f"{tmp_path}/log")
        .replace("/opt/", f"{tmp_path}/opt/")
        .replace("/etc/", f"{tmp_path}/etc/")
    )
    done = subprocess.run(
        ["bash", "-c", moved],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert (
        config.read_text()
        == f'version = 3\nroot = "{tmp_path}/opt/sagemaker/containerd"\nstate = "/run/containerd"\n'
    )


@pytest.mark.deep
def test_a_production_stack_with_a_hyperpod_pool_is_rehearsed_whole(root: Path) -> None:
    pool = (
        "{name: steady, accelerator: H100, per_node: 8, min_nodes: 2, max_nodes: 2, kind: hyperpod,"
        " interconnect: best, compact: true}"
    )
    settings = stack_settings(
        "aws-prod",
        root,
        [f"gpu_pools=[{pool}, {{name: l4, accelerator: L4, per_node: 4, max_nodes: 16, capacity: spot}}]"],
    )
    report = rehearse(
        read_project(root, "aws-prod"),
        find_engine(),
        RehearsalOptions([root / "policies"]),
        subject="aws-prod",
        settings=settings,
    )
    assert report.ok, report.problems
    assert report.missing_rules == []
