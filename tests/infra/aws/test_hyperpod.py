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
from trainfleet.infra.spec.node_group import groups_of_capacity
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
    (pool,) = groups_of_capacity(GpuPool.model_validate({**STEADY, **changes}))
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


def run_script(folder: Path, **commands: str) -> str:
    """Run the script on a machine whose root is `folder`, with these commands in place of the system's, and
    return what it wrote into its log.
    """
    programs = folder / "bin"
    programs.mkdir()
    (folder / "etc/systemd/system").mkdir(parents=True)
    for name, body in {"sleep": "exit 0", **commands}.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    text = SCRIPT.read_text()
    for path in ("/var/", "/opt/", "/etc/"):
        text = re.sub(rf"(?<=[ =\"]){path}", f"{folder}{path}", text)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "MACHINE": str(folder)}
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return (folder / "var/log/provision/on_create.log").read_text()


def test_the_lifecycle_script_is_a_script_that_ends_well_where_nothing_is_as_it_expects(
    tmp_path: Path,
) -> None:
    assert SCRIPT.read_text().startswith("#!/bin/bash\n")
    log = run_script(tmp_path, mountpoint="exit 1", systemctl="exit 1")
    assert log.count("no large disk is mounted yet") == 6
    assert log.endswith("on_create is done\n")


ESCAPE = 'echo "$3" | sed "s|^$MACHINE/||; s|/|-|g; s|$|.mount|"'
SERVICES = 'echo "$@" >> "$MACHINE/calls"\ncase "$1 $3" in "is-active kubelet") exit 3;; esac'


def test_what_pods_write_goes_to_the_large_disk(tmp_path: Path) -> None:
    pause = tmp_path / "var/lib/containerd/pause"
    pause.parent.mkdir(parents=True)
    pause.write_text("an image of the machine's own")
    disk = 'case "$2" in *sagemaker) exit 0;; *) exit 1;; esac'
    run_script(tmp_path, mountpoint=disk, systemctl=SERVICES, **{"systemd-escape": ESCAPE})
    sagemaker = tmp_path / "opt/sagemaker"
    assert (sagemaker / "containerd/pause").read_text() == pause.read_text()
    unit = (tmp_path / "etc/systemd/system/var-lib-containerd.mount").read_text().splitlines()
    assert {
        f"What={sagemaker}/containerd",
        f"Where={tmp_path}/var/lib/containerd",
        "Options=bind",
        f"ConditionPathIsMountPoint={sagemaker}",
    } <= set(unit)
    calls = (tmp_path / "calls").read_text().splitlines()
    mounted = [call.removeprefix("enable --now ") for call in calls if call.startswith("enable")]
    assert mounted == ["var-lib-containerd.mount", "var-lib-kubelet.mount", "var-log-pods.mount"]
    assert calls.index("stop containerd") < calls.index(f"enable --now {mounted[0]}")
    assert calls[-1] == "start containerd", "and not the kubelet, which did not run"


def test_a_folder_that_cannot_be_moved_stays_and_the_node_is_used(tmp_path: Path) -> None:
    refuses = f'case "$1" in enable) exit 1;; esac\n{SERVICES}'
    log = run_script(tmp_path, mountpoint="exit 0", systemctl=refuses, **{"systemd-escape": ESCAPE})
    assert f"{tmp_path}/var/lib/kubelet stays on the root volume" in log
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "start containerd"


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
