"""The order in which a platform is made and unmade, on the real engine over the simulated clouds, and what it
then hands out.

One apply and one destroy serve all tests of this file. The order on destroy is what leaves nothing behind at
AWS.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.infra.aws.platforms import SMALL
from tests.infra.lifecycle import Lifecycle, order_of, run_lifecycle, waiting_for
from trainfleet.infra.aws.hyperpod_request import Cluster
from trainfleet.infra.aws.permissions import RUNS_PREFIX
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS

# The simulated provider reads every class of the SDK, the old ones too, and those warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

WHOLE = {
    **SMALL,
    "gpu_pools": [
        {
            "name": "h100",
            "accelerator": "H100",
            "per_node": 8,
            "max_nodes": 2,
            "interconnect": "best",
            "compact": True,
        },
        {"name": "l4", "accelerator": "L4", "per_node": 4, "max_nodes": 2, "capacity": "spot"},
        {
            "name": "steady",
            "accelerator": "A100",
            "per_node": 8,
            "min_nodes": 2,
            "max_nodes": 2,
            "kind": "hyperpod",
            "interconnect": "best",
            "compact": True,
        },
    ],
    "kubernetes": {
        **SMALL["kubernetes"],
        "admins": ["arn:aws:iam::111122223333:role/admin"],
        "launchers": ["arn:aws:iam::111122223333:role/ml"],
    },
    "storage": {"shared_filesystem": {"kind": "lustre", "capacity_gib": 1200}},
    "secrets": {"names": ["hf-token"]},
    "budget": {"monthly_usd": 5000},
}


@pytest.fixture(scope="module")
def life(root: Path) -> Lifecycle:
    return run_lifecycle(root, "aws-dev", {"aws:region": "us-east-2", "trainfleet:platform": WHOLE})


NODES = "aws:eks/nodeGroup:NodeGroup"
CLUSTER = "aws:eks/cluster:Cluster"
HYPERPOD = "aws:cloudcontrol/resource:Resource"


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        (
            "kubernetes:*",
            "lab-system",
            "pods, volumes and load balancers end while there are nodes to end them",
        ),
        ("lab-*-device-plugin", NODES, "the agents of GPU nodes end while there are nodes to end them"),
        ("lab-dcgm-exporter", HYPERPOD, "the agents of GPU nodes end while there are nodes to end them"),
        (
            "kubernetes:*",
            "aws:eks/podIdentityAssociation:PodIdentityAssociation",
            "a controller cleans up with the role it has",
        ),
        (NODES, "lab-vpc-cni", "without the plug-in the interfaces of pods stay behind and hold the subnets"),
        (NODES, "lab-kube-proxy", "nodes are drained with a working network"),
        (NODES, "aws:ec2/route:Route", "nodes need egress while they are drained"),
        (NODES, "aws:ec2/vpcEndpoint:VpcEndpoint", "nodes are drained with a way to AWS"),
        (NODES, "lab-fabric-sg", "a group in use cannot be deleted"),
        (NODES, "aws:ec2/placementGroup:PlacementGroup", "a group in use cannot be deleted"),
        (HYPERPOD, "lab-hyperpod-sg", "a group in use cannot be deleted"),
        (
            HYPERPOD,
            "lab-hyperpod-health-monitoring-agent",
            "without its agent a node never becomes schedulable, and is never given back",
        ),
        (HYPERPOD, "lab-hyperpod-binding-hyperpod-patching", "SageMaker drains nodes with this"),
        (HYPERPOD, "lab-hyperpod-rights", "nodes give their interfaces back with the role"),
        (HYPERPOD, "lab-hyperpod-script", "a node that is replaced meanwhile runs it"),
        (HYPERPOD, "aws:eks/addon:Addon", "the network plug-in serves HyperPod's nodes too"),
        (NODES, "lab-node-role", "EKS cleans up with the role"),
        ("aws:eks/addon:Addon", CLUSTER, "add-ons are on the cluster"),
        (CLUSTER, "aws:ec2/subnet:Subnet", "the control plane has interfaces in the subnets"),
        (
            CLUSTER,
            "lab-cluster-logs",
            "a control plane that still writes makes a log group that never expires",
        ),
        (
            CLUSTER,
            "lab-cluster-AmazonEKSClusterPolicy",
            "EKS deletes the control plane's interfaces with this",
        ),
        (
            "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
            "aws:fsx/lustreFileSystem:LustreFileSystem",
            "the link ends before what it links",
        ),
        ("aws:fsx/lustreFileSystem:LustreFileSystem", "lab-lustre-sg", "a group in use cannot be deleted"),
        ("aws:ec2/natGateway:NatGateway", "aws:ec2/eip:Eip", "an address in use cannot be released"),
        (
            "aws:ec2/eip:Eip",
            "aws:ec2/internetGateway:InternetGateway",
            "AWS keeps a gateway while a public address hangs on it",
        ),
        ("aws:ec2/subnet:Subnet", "aws:ec2/vpc:Vpc", "the network goes last"),
    ],
)
def test_on_destroy_all_of_one_kind_are_gone_before_the_other_goes(
    life: Lifecycle, first: str, then: str, why: str
) -> None:
    assert max(order_of(life.unmade, first)) < min(order_of(life.unmade, then)), why


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        ("lab-vpc-cni", NODES, "a node without the plug-in never becomes ready"),
        ("lab-eks-pod-identity-agent", NODES, "a pod without the agent starts without its role"),
        ("lab-cluster-logs", CLUSTER, "else EKS makes a log group without an end or a key"),
        ("aws:ec2/route:Route", NODES, "a node without egress cannot join"),
        ("lab-system", "lab-coredns", "an add-on that needs a node waits for one, or fails"),
        (
            "aws:eks/podIdentityAssociation:PodIdentityAssociation",
            "kubernetes:*",
            "a pod gets its role when it starts, or never",
        ),
        ("lab-system", "kubernetes:*", "the cluster layer needs a node to run on"),
        ("lab-bucket-private", "lab-bucket-policy", "both at once on one bucket is refused"),
    ],
)
def test_on_apply_one_kind_exists_before_the_other(life: Lifecycle, first: str, then: str, why: str) -> None:
    assert max(order_of(life.made, first)) < min(order_of(life.made, then)), why


def test_only_agents_of_gpu_nodes_wait_for_gpu_pools(life: Lifecycle) -> None:
    """A refused capacity block, or HyperPod's hours, must hold up nothing that runs on CPU nodes."""
    assert waiting_for(life, {"lab-h100", "lab-l4", "lab-hyperpod"}) == {
        "lab-nvidia-device-plugin",
        "lab-efa-device-plugin",
        "lab-dcgm-exporter",
    }


def test_the_filesystem_exports_only_what_training_may_write_in_the_bucket(life: Lifecycle) -> None:
    """FSx writes with a role of its own, so a wider link would undo the limits of training's role."""
    links = [inputs for inputs in life.inputs.values() if "dataRepositoryPath" in inputs]
    bucket = life.inputs["lab-hyperpod-script"]["bucket"]
    exported = {each["dataRepositoryPath"] for each in links if "autoExportPolicy" in each["s3"]}
    assert exported == {f"s3://{bucket}/{RUNS_PREFIX}"}
    assert {each["dataRepositoryPath"] for each in links} - exported == {f"s3://{bucket}/datasets/"}
    (container,) = life.inputs["lab-shared-folders"]["spec"]["template"]["spec"]["containers"]
    assert "datasets" not in container["command"][-1], "trainings may not change what comes from the bucket"


def test_destroy_leaves_nothing_outside_production(life: Lifecycle) -> None:
    assert life.left == 0
    assert len(life.unmade) == len(life.made)


def test_the_outputs_are_the_contract(life: Lifecycle) -> None:
    outputs = life.outputs
    assert (outputs.kube_context, outputs.namespace, outputs.service_account) == (
        "trainfleet-lab",
        "training",
        "trainer",
    )
    assert outputs.bucket_url.startswith("s3://lab-bucket-")
    assert outputs.bucket_url.endswith("/runs")
    assert outputs.image.startswith(f"{outputs.registry}:")
    assert outputs.training_identity.startswith("arn:aws:iam::")
    assert outputs.shared_volume == "shared"
    h100, l4, steady = outputs.pools
    assert (h100.rdma, h100.rdma_resource, h100.rdma_nics) == ("efa", "vpc.amazonaws.com/efa", 32)
    assert (l4.rdma, l4.rdma_resource, l4.rdma_nics, l4.spot) == ("none", "", 0, True)
    assert h100.node_selector == {"trainfleet.io/pool": "h100"}
    assert (steady.kind, steady.instance_type, steady.usd_per_hour) == ("hyperpod", "ml.p4d.24xlarge", None)
    assert steady.node_selector == {
        "trainfleet.io/pool": "steady",
        "sagemaker.amazonaws.com/node-health-status": "Schedulable",
    }


def test_the_kubeconfig_that_is_handed_out_names_the_cluster_and_no_credential(life: Lifecycle) -> None:
    document: dict[str, Any] = json.loads(life.outputs.kubeconfig)
    assert document["clusters"][0]["cluster"]["server"].startswith("https://")
    assert set(document["users"][0]["user"]) == {"exec"}


def test_the_cluster_layer_stays_when_endpoint_or_certificate_change_and_goes_with_the_cluster(
    life: Lifecycle,
) -> None:
    now = life.inputs["lab-kubernetes-provider"]
    moved = {**now, "kubeconfig": now["kubeconfig"].replace("https://", "https://new-")}
    assert moved != now
    assert CLOUD_MODELS["kubernetes"].config_replaces(now, moved) == []
    assert CLOUD_MODELS["kubernetes"].config_replaces(
        now, {**now, "clusterIdentifier": "trainfleet-lab@later"}
    ) == ["clusterIdentifier"]
    assert now["clusterIdentifier"].startswith("trainfleet-lab@")


def test_a_node_with_fabric_interfaces_is_still_a_member_of_the_cluster(life: Lifecycle) -> None:
    first, *others = life.inputs["lab-h100-template"]["networkInterfaces"]
    cluster_group, fabric_group = first["securityGroups"]
    assert cluster_group != fabric_group, (
        "EKS adds the cluster's group by itself only where a template lists none"
    )
    assert len(others) == 31
    assert all(other["securityGroups"] == [fabric_group] for other in others)
    assert "networkInterfaces" not in life.inputs["lab-l4-template"]


def test_a_pool_that_is_bound_to_a_zone_has_one_subnet_and_the_others_all(life: Lifecycle) -> None:
    assert len(life.inputs["lab-h100"]["subnetIds"]) == 1
    assert len(life.inputs["lab-l4"]["subnetIds"]) == 2
    assert life.inputs["lab-h100"]["scalingConfig"] == {"minSize": 0, "maxSize": 2, "desiredSize": 0}


def test_a_launcher_is_a_member_of_the_group_and_gets_no_more(life: Lifecycle) -> None:
    entries = {
        inputs["principalArn"]: inputs
        for inputs in life.inputs.values()
        if inputs.get("type") == "STANDARD" and "principalArn" in inputs
    }
    assert entries["arn:aws:iam::111122223333:role/ml"]["kubernetesGroups"] == ["trainfleet:launchers"]
    assert "kubernetesGroups" not in entries["arn:aws:iam::111122223333:role/admin"]
    rights = [inputs["principalArn"] for inputs in life.inputs.values() if "accessScope" in inputs]
    assert rights == ["arn:aws:iam::111122223333:role/admin"]


def test_the_request_to_sagemaker_names_what_was_really_made(life: Lifecycle) -> None:
    request = Cluster.model_validate_json(life.inputs["lab-hyperpod"]["desiredState"])
    (group,) = request.InstanceGroups
    assert group.ExecutionRole.startswith("arn:aws:iam::")
    assert "hyperpod-role" in group.ExecutionRole
    assert (
        group.LifeCycleConfig.SourceS3Uri == f"s3://{life.inputs['lab-hyperpod-script']['bucket']}/hyperpod"
    )
    assert life.inputs["lab-hyperpod-script"]["key"] == f"hyperpod/{group.LifeCycleConfig.OnCreate}"
    assert len(group.OverrideVpcConfig.Subnets) == 1, "a compact pool stays in one zone"
    assert len(request.VpcConfig.Subnets) == 2
    assert request.Orchestrator.Eks.ClusterArn.endswith("cluster/trainfleet-lab")


def test_pods_logs_go_to_a_group_that_is_encrypted_and_ends(life: Lifecycle) -> None:
    group = life.inputs["lab-pod-logs"]
    assert (group["retentionInDays"], bool(group["kmsKeyId"])) == (365, True)
    assert life.inputs["lab-logs-identity"]["namespace"] == "logging"
