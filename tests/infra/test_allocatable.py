"""What pods can request of a node, against the figures of the clouds' documentation."""

from __future__ import annotations

import pytest

from trainfleet.infra.catalog.machines import Machine, catalogue
from trainfleet.infra.cloud_support import support
from trainfleet.infra.clouds import Cloud


def machine(cloud: Cloud, vcpu: int, memory_gib: float) -> Machine:
    return Machine(
        cloud=cloud,
        instance_type="of that size",
        accelerators_per_node=0,
        vcpu=vcpu,
        memory_gib=memory_gib,
        rdma="none",
        rdma_nics=0,
        price_region="",
        source="this test",
    )


@pytest.mark.parametrize(
    ("cloud", "vcpu", "memory_gib", "cpus", "allocatable_gib"),
    [
        # GKE, plan node sizes: e2-standard-4, -8 and -32, without the 100 MiB for evictions
        (Cloud.GCP, 4, 16, 3.92, 13.4),
        (Cloud.GCP, 8, 32, 7.91, 28.4),
        (Cloud.GCP, 32, 128, 31.85, 118.7),
        # awslabs/amazon-eks-ami: 80 thousandths of four CPUs; 255 MiB and 11 for each of 29 pods
        (Cloud.AWS, 4, 16, 3.92, 16 - 574 / 1024),
        (Cloud.AWS, 192, 2048, 191.45, 2048 - 574 / 1024),
        # AKS, node resource reservations: 140, 180 and 740 thousandths; 20 MB for each of 110 pods, and 50
        (Cloud.AZURE, 4, 28, 3.86, 28 - 2250 / 1024),
        (Cloud.AZURE, 8, 56, 7.82, 56 - 2250 / 1024),
        (Cloud.AZURE, 64, 440, 63.26, 440 - 2250 / 1024),
        (Cloud.AZURE, 4, 8, 3.86, 6),
    ],
)
def test_the_clouds_reserve_what_their_documentation_states(
    cloud: Cloud, vcpu: int, memory_gib: float, cpus: float, allocatable_gib: float
) -> None:
    found = support(cloud).allocatable(machine(cloud, vcpu, memory_gib))
    assert found.cpus == cpus
    assert found.memory_gib == pytest.approx(allocatable_gib - 100 / 1024, abs=0.05)


def test_the_nodes_of_an_existing_cluster_have_an_unknown_size() -> None:
    found = support(Cloud.LOCAL).allocatable(machine(Cloud.LOCAL, 0, 0))
    assert (found.cpus, found.memory_gib) == (0, 0)


@pytest.mark.parametrize(
    "each", [each for each in catalogue() if each.accelerator], ids=lambda each: each.instance_type
)
def test_every_machine_has_a_cpu_and_half_the_memory_of_each_gpu_for_pods(each: Machine) -> None:
    """KubeRay's workers request the latter (training/launch/kuberay/worker_size.py)."""
    found = support(each.cloud).allocatable(each)
    assert found.cpus > each.accelerators_per_node
    assert found.memory_gib > each.accelerators_per_node * each.gpu_memory_gib / 2
