"""The order in which a platform is made and unmade, on the real engine over the simulated clouds, and what it
then hands out.

One apply and one destroy serve all tests of this file. The order on destroy is what leaves nothing behind at
Google.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.infra.gcp.platforms import SMALL
from tests.infra.lifecycle import Lifecycle, order_of, run_lifecycle, waiting_for
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS

# The simulated provider reads every class of the SDK, the old ones too, and those warn.
pytestmark = [
    pytest.mark.deep,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]  # a whole life: AWS's is lived at every change

WHOLE = {
    **SMALL,
    "gpu_pools": [
        {
            "name": "h200",
            "accelerator": "H200",
            "per_node": 8,
            "max_nodes": 2,
            "capacity": "reserved",
            "reservation": "block",
            "interconnect": "best",
        },
        {
            "name": "h100",
            "accelerator": "H100",
            "per_node": 8,
            "max_nodes": 2,
            "interconnect": "best",
            "compact": True,
        },
        {"name": "a100", "accelerator": "A100", "max_nodes": 2, "capacity": "queued", "max_run_hours": 24},
        {"name": "l4", "accelerator": "L4", "max_nodes": 2, "capacity": "flex-start"},
    ],
    "kubernetes": {"admins": ["admin@example.com"], "launchers": ["ml@example.com"]},
    "storage": {
        "shared_filesystem": {"kind": "lustre", "capacity_gib": 9000, "throughput_mbps_per_tib": 1000}
    },
    "queue": {"enabled": True},
    "secrets": {"names": ["hf-token"]},
    "budget": {"monthly_usd": 5000},
}


@pytest.fixture(scope="module")
def life(root: Path) -> Lifecycle:
    return run_lifecycle(
        root,
        "gcp-dev",
        {"gcp:project": SMALL["account"], "gcp:region": SMALL["region"], "trainfleet:platform": WHOLE},
    )


NODES = "gcp:container/nodePool:NodePool"
GPU_AGENTS = "lab-nccl-*"
CLUSTER = "gcp:container/cluster:Cluster"
LENT = "gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember"


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        (
            "kubernetes:*",
            "lab-system",
            "pods, volumes and load balancers end while there are nodes to end them",
        ),
        (GPU_AGENTS, NODES, "the agents of GPU nodes end while there are nodes to end them"),
        (
            "kubernetes:*",
            "gcp:serviceaccount/iAMMember:IAMMember",
            "a controller cleans up with the identity it has",
        ),
        (NODES, "gcp:compute/routerNat:RouterNat", "nodes need egress while they are drained"),
        (NODES, "lab-inside", "nodes are drained while they hear one another"),
        (NODES, "lab-nodes-default", "a node needs its roles until its end"),
        (NODES, CLUSTER, "pools are of the cluster"),
        (NODES, "lab-rdma-0-subnet", "a subnet in use cannot be deleted"),
        (NODES, "lab-nodes-key-compute", "a disk cannot be detached cleanly with a key that nobody may use"),
        (CLUSTER, "lab-subnet", "the control plane has an address in the subnet"),
        (CLUSTER, "lab-cluster-key-gke", "the control plane opens its secrets until the end"),
        (
            "gcp:lustre/instance:Instance",
            "gcp:servicenetworking/connection:Connection",
            "the filesystem is behind the peering",
        ),
        (
            "gcp:lustre/instance:Instance",
            "lab-lustre-servers",
            "servers call clients back until they unmount",
        ),
        (
            "gcp:servicenetworking/connection:Connection",
            "gcp:compute/globalAddress:GlobalAddress",
            "a range in use cannot be released",
        ),
        ("gcp:storage/bucket:Bucket", LENT, "a bucket is emptied with its key"),
        ("gcp:compute/subnetwork:Subnetwork", "lab-vpc", "the network goes last"),
    ],
)
def test_on_destroy_all_of_one_kind_are_gone_before_the_other_goes(
    life: Lifecycle, first: str, then: str, why: str
) -> None:
    assert max(order_of(life.unmade, first)) < min(order_of(life.unmade, then)), why


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        ("gcp:projects/service:Service", "gcp:kms/keyRing:KeyRing", "an API that is off answers nothing"),
        ("gcp:projects/service:Service", "gcp:compute/network:Network", "an API that is off answers nothing"),
        (
            "gcp:projects/service:Service",
            "gcp:serviceaccount/account:Account",
            "an API that is off answers nothing",
        ),
        (LENT, "gcp:storage/bucket:Bucket", "a bucket is encrypted by an agent that may use the key"),
        (LENT, "gcp:secretmanager/secret:Secret", "a secret is encrypted by an agent that may use the key"),
        (
            LENT,
            "gcp:artifactregistry/repository:Repository",
            "images are encrypted by an agent that may use the key",
        ),
        (LENT, CLUSTER, "secrets of Kubernetes are encrypted by an agent that may use the key"),
        ("gcp:logging/projectSink:ProjectSink", CLUSTER, "the first log lines are kept as long as the last"),
        ("gcp:compute/routerNat:RouterNat", NODES, "a node without egress cannot pull public images"),
        ("lab-vpc1-inside", NODES, "a node that hears no peer waits for ever"),
        (
            CLUSTER,
            "gcp:serviceaccount/iAMMember:IAMMember",
            "the pool of identities is there with the first cluster",
        ),
        (
            "gcp:serviceaccount/iAMMember:IAMMember",
            "kubernetes:*",
            "a pod gets its identity when it starts, or never",
        ),
        ("lab-system", "kubernetes:*", "the cluster layer needs a node to run on"),
    ],
)
def test_on_apply_one_kind_exists_before_the_other(life: Lifecycle, first: str, then: str, why: str) -> None:
    assert max(order_of(life.made, first)) < min(order_of(life.made, then)), why


def test_only_agents_and_networks_of_gpu_nodes_wait_for_gpu_pools(life: Lifecycle) -> None:
    """A pool that is refused must hold up nothing that runs on CPU nodes."""
    waiting = waiting_for(life, {f"lab-{pool}" for pool in ("h200", "h100", "a100", "l4")})
    networks = {name for name in waiting if name.endswith(("-parameters", "-network"))}
    assert len(networks) == 2 * (1 + 8 + 4), "a gVNIC, eight RDMA and four TCPX networks"
    agents = {"lab-nccl-roce", "lab-nccl-gpudirect-tcpx", "lab-devices-gpudirect-tcpx"}
    assert waiting - networks == agents


def test_destroy_leaves_nothing_outside_production(life: Lifecycle) -> None:
    assert life.left == 0
    assert len(life.unmade) == len(life.made)


def test_the_outputs_are_the_contract(life: Lifecycle) -> None:
    outputs = life.outputs
    assert outputs.kube_context == "gke_my-project-123456_us-central1_trainfleet-lab"
    assert (outputs.namespace, outputs.service_account, outputs.autoscaler) == ("training", "trainer", "gke")
    assert outputs.bucket_url.startswith("gs://lab-bucket-")
    assert outputs.bucket_url.endswith("/runs")
    assert outputs.image.startswith("us-central1-docker.pkg.dev/my-project-123456/trainfleet-lab/training:")
    assert outputs.training_identity == "lab-training@my-project-123456.iam.gserviceaccount.com"
    assert outputs.shared_volume == "shared"
    assert [pool.instance_type for pool in outputs.pools] == [
        "a3-ultragpu-8g",
        "a3-highgpu-8g",
        "a2-highgpu-1g",
        "g2-standard-4",
    ]


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
    assert CLOUD_MODELS["kubernetes"].config_replaces(now, {**now, "clusterIdentifier": "another"}) == [
        "clusterIdentifier"
    ]


def test_no_node_runs_as_the_projects_default_account_and_no_account_has_a_key(life: Lifecycle) -> None:
    pools = [life.inputs[f"lab-{name}"]["nodeConfig"] for name in ("system", "h200", "h100", "a100", "l4")]
    assert {pool["serviceAccount"] for pool in pools} == {
        "lab-nodes@my-project-123456.iam.gserviceaccount.com"
    }
    assert {pool["workloadMetadataConfig"]["mode"] for pool in pools} == {"GKE_METADATA"}
    assert not [operation for operation in life.made if operation.token == "gcp:serviceaccount/key:Key"]


def test_a_pool_is_bought_as_the_spec_says(life: Lifecycle) -> None:
    h200, h100, a100, l4 = (life.inputs[f"lab-{name}"] for name in ("h200", "h100", "a100", "l4"))
    assert h200["nodeConfig"]["reservationAffinity"]["consumeReservationType"] == "SPECIFIC_RESERVATION"
    assert h200["upgradeSettings"]["maxSurge"] == 0
    assert (h200["nodeLocations"], h100["nodeLocations"]) == (["us-central1-b"], ["us-central1-a"])
    assert "placementPolicy" not in h200
    assert h100["placementPolicy"] == {"type": "COMPACT"}
    assert a100["queuedProvisioning"] == {"enabled": True}
    assert a100["nodeConfig"]["maxRunDuration"] == "86400s"
    assert l4["nodeConfig"]["flexStart"] is True
    assert [pool["management"]["autoRepair"] for pool in (h200, h100, a100, l4)] == [True, True, False, False]
    assert {pool["initialNodeCount"] for pool in (h200, h100, a100, l4)} == {0}


def test_a_node_has_an_interface_in_every_network_that_its_pods_name(life: Lifecycle) -> None:
    links = {
        name: life.inputs[f"lab-{name}"]["networkConfig"]["additionalNodeNetworkConfigs"]
        for name in ("h200", "h100", "l4")
    }
    assert [len(links[name]) for name in ("h200", "h100", "l4")] == [9, 4, 0]
    assert len({link["network"] for link in links["h200"]}) == 2
    assert len({link["subnetwork"] for link in links["h200"]}) == 9
    assert life.inputs["lab-rdma"]["networkProfile"].endswith("/us-central1-b-vpc-roce")
    assert life.inputs["lab-rdma-3-parameters"]["spec"]["deviceMode"] == "RDMA"
    assert life.inputs["lab-vpc2-parameters"]["spec"]["deviceMode"] == "NetDevice"
    assert life.inputs["lab-gke"]["enableMultiNetworking"] is True


def test_the_clusters_logs_go_to_a_bucket_of_their_own(life: Lifecycle) -> None:
    bucket = life.inputs["lab-cluster-logs"]
    assert bucket["retentionDays"] == 365
    assert life.inputs["lab-cluster-logs-sink"]["destination"].endswith(
        f"/locations/us-central1/buckets/{bucket['bucketId']}"
    )


def test_images_are_streamed_to_the_nodes_of_every_pool(life: Lifecycle) -> None:
    """A training image has gigabytes; a pod starts before they have arrived."""
    pools = {name: each for name, each in life.inputs.items() if "nodeConfig" in each and "cluster" in each}
    assert len(pools) > len(WHOLE["gpu_pools"]), "those of the spec, and those of operators and heads"
    assert {
        name for name, each in pools.items() if each["nodeConfig"].get("gcfsConfig") != {"enabled": True}
    } == set()
