"""The catalogue of machines, and which of them serves a pool."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from trainfleet.infra.catalog.machines import (
    CatalogueError,
    Machine,
    catalogue,
    machine_for_pool,
    machines_file,
    machines_of,
    read_catalogue,
    sells_machines,
    system_machine,
)
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.schema import Capacity, GpuPool, PlatformSpec

ROW = """[[machine]]
cloud = "aws"
instance_type = "g6.12xlarge"
accelerator = "L4"
accelerators_per_node = 4
gpu_memory_gib = 22.35
vcpu = 48
memory_gib = 192
rdma = "efa"
rdma_nics = 1
price_region = "us-east-1"
source = "a file"
"""


def machine(instance_type: str) -> Machine:
    (found,) = [each for each in catalogue() if each.instance_type == instance_type]
    return found


def pool(accelerator: str, per_node: int, **more: Any) -> GpuPool:
    return GpuPool(name="pool", accelerator=accelerator, per_node=per_node, **more)


def test_the_catalogue_has_every_machine_of_the_three_clouds() -> None:
    assert Counter(each.cloud.value for each in catalogue()) == {"aws": 96, "gcp": 33, "azure": 19}


def test_a_row_is_read_whole() -> None:
    found = machine("p5.48xlarge")
    assert (
        found.accelerator,
        found.accelerators_per_node,
        found.gpu_memory_gib,
        found.vcpu,
        found.memory_gib,
    ) == ("H100", 8, 80, 192, 2048)
    assert (found.rdma, found.rdma_nics, found.network_gbps, found.local_nvme_gb) == ("efa", 32, 3200, 30400)
    assert (
        found.usd_per_hour_on_demand,
        found.usd_per_hour_spot,
        found.price_region,
        str(found.price_date),
    ) == (55.04, 23.45325, "us-east-1", "2026-07-20")


def test_memory_is_per_gpu() -> None:
    assert machine("Standard_ND96isr_H100_v5").gpu_memory_gib == 80


def test_what_is_not_known_is_none_and_never_zero() -> None:
    assert machine("p5e.48xlarge").usd_per_hour_on_demand is None
    assert machine("Standard_NC4as_T4_v3").local_nvme_gb is None
    assert machine("n1-standard-8").network_gbps is None
    assert [
        each.instance_type
        for each in catalogue()
        if 0 in {each.usd_per_hour_on_demand, each.usd_per_hour_spot}
    ] == []


def test_every_price_names_its_source_and_dated_ones_their_date() -> None:
    assert all(each.source and each.price_region for each in catalogue())
    assert [
        each.instance_type for each in catalogue() if each.price_date is None and each.kind == "nodes"
    ] == ["p5e.48xlarge", "a3-ultragpu-8g", "a4-highgpu-8g"]


@pytest.mark.parametrize(
    ("instance_type", "label"),
    [
        ("p5.48xlarge", "h100"),
        ("p4de.24xlarge", "a100-80gb"),
        ("p4d.24xlarge", "a100"),
        ("a3-megagpu-8g", "h100-mega"),
        ("g7e.48xlarge", "rtxpro6000"),
        ("m7i.large", None),
    ],
)
def test_the_label_is_what_skypilot_accepts(instance_type: str, label: str | None) -> None:
    assert machine(instance_type).skypilot_label == label


@pytest.mark.parametrize(
    ("pool_spec", "instance_type"),
    [
        (pool("H100", 8), "p5.48xlarge"),
        (pool("H100", 1), "p5.4xlarge"),
        (pool("H200", 8), "p5en.48xlarge"),
        (pool("H200", 8, instance_type="p5e.48xlarge"), "p5e.48xlarge"),
        (pool("H200", 8, capacity=Capacity.CAPACITY_BLOCK), "p5en.48xlarge"),
        (pool("H200", 8, capacity=Capacity.SPOT), "p5en.48xlarge"),
        (pool("A10G", 1), "g5.xlarge"),
        (pool("L4", 4, capacity=Capacity.SPOT), "g6.12xlarge"),
    ],
)
def test_a_pool_gets_the_cheapest_machine_with_its_accelerators(
    pool_spec: GpuPool, instance_type: str
) -> None:
    assert machine_for_pool(Cloud.AWS, pool_spec).instance_type == instance_type


def test_the_cheapest_of_several_is_chosen() -> None:
    assert machine_for_pool(Cloud.GCP, pool("L4", 1)).instance_type == "g2-standard-4"


def test_a_spot_pool_is_chosen_by_the_spot_price(monkeypatch: pytest.MonkeyPatch) -> None:
    cheap, dear = (
        'usd_per_hour_on_demand = 1.0\nusd_per_hour_spot = 0.9\ninstance_type = "a"',
        'usd_per_hour_on_demand = 2.0\nusd_per_hour_spot = 0.1\ninstance_type = "b"',
    )
    rows = read_catalogue(
        "".join(ROW.replace('instance_type = "g6.12xlarge"', each) for each in (cheap, dear))
    )
    monkeypatch.setattr("trainfleet.infra.catalog.machines.catalogue", lambda: rows)
    assert machine_for_pool(Cloud.AWS, pool("L4", 4)).instance_type == "a"
    assert machine_for_pool(Cloud.AWS, pool("L4", 4, capacity=Capacity.SPOT)).instance_type == "b"


def test_a_hyperpod_pool_gets_a_machine_of_sagemaker_and_no_other_pool_does() -> None:
    assert machine_for_pool(Cloud.AWS, pool("H100", 8, kind="hyperpod")).instance_type == "ml.p5.48xlarge"
    assert machine_for_pool(Cloud.AWS, pool("H100", 8)).instance_type == "p5.48xlarge"
    assert {each.instance_type for each in machines_of(Cloud.AWS, "H100", kind="hyperpod")} == {
        "ml.p5.4xlarge",
        "ml.p5.48xlarge",
    }
    with pytest.raises(LookupError, match="no machine with 1 x T4 is in this catalogue of HyperPod"):
        machine_for_pool(Cloud.AWS, pool("T4", 1, kind="hyperpod"))


def test_a_machine_of_sagemaker_is_ec2s_under_another_name_and_without_its_price() -> None:
    twins = [
        (each, machine(each.instance_type.removeprefix("ml.")))
        for each in catalogue()
        if each.kind == "hyperpod"
    ]
    shape = (
        "cloud",
        "accelerator",
        "accelerators_per_node",
        "gpu_memory_gib",
        "vcpu",
        "memory_gib",
        "rdma",
        "rdma_nics",
        "local_nvme_gb",
    )
    assert [
        ml.instance_type
        for ml, ec2 in twins
        if any(getattr(ml, name) != getattr(ec2, name) for name in shape)
    ] == []
    assert {ml.usd_per_hour_on_demand for ml, _ in twins} == {None}


def test_the_best_interconnect_prefers_a_machine_with_a_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = (
        ROW.replace('"efa"', '"none"')
        .replace("rdma_nics = 1", "rdma_nics = 0\nusd_per_hour_on_demand = 1.0")
        .replace("g6.12xlarge", "plain")
    )
    rows = read_catalogue(plain + ROW + "usd_per_hour_on_demand = 9.0\n")
    monkeypatch.setattr("trainfleet.infra.catalog.machines.catalogue", lambda: rows)
    assert machine_for_pool(Cloud.AWS, pool("L4", 4)).instance_type == "plain"
    assert machine_for_pool(Cloud.AWS, pool("L4", 4, interconnect="best")).instance_type == "g6.12xlarge"


@pytest.mark.parametrize(
    "pool_spec", [pool("H100", 3), pool("V100", 8), pool("H100", 8, instance_type="g5.xlarge")]
)
def test_what_a_cloud_does_not_sell_is_a_lookup_error(pool_spec: GpuPool) -> None:
    with pytest.raises(LookupError, match=r"no machine with .* is in this catalogue of aws"):
        machine_for_pool(Cloud.AWS, pool_spec)


def test_a_local_pool_has_its_own_nodes() -> None:
    found = machine_for_pool(Cloud.LOCAL, pool("L4", 2))
    assert (
        found.accelerator,
        found.accelerators_per_node,
        found.skypilot_label,
        found.rdma,
        found.usd_per_hour_on_demand,
    ) == ("L4", 2, "l4", "none", None)


def test_machines_of_a_cloud_are_its_gpu_machines() -> None:
    assert {each.accelerator for each in machines_of(Cloud.AZURE)} == {
        "T4",
        "A100",
        "A100-80GB",
        "H100",
        "H200",
        "A10",
    }


@pytest.mark.parametrize(
    ("cloud", "size", "instance_type"),
    [
        ("aws", "small", "m7i.large"),
        ("aws", "medium", "m7i.2xlarge"),
        ("aws", "large", "m7i.4xlarge"),
        ("gcp", "small", "e2-standard-4"),
        ("azure", "large", "Standard_D16s_v5"),
    ],
)
def test_the_system_pool_is_a_cpu_machine_of_its_size(cloud: str, size: str, instance_type: str) -> None:
    spec = PlatformSpec.model_validate(
        {"name": "demo", "cloud": cloud, "owner": "a@example.com", "system_pool": {"size": size}}
    )
    assert system_machine(spec).instance_type == instance_type


def test_a_local_platform_has_no_system_machine() -> None:
    with pytest.raises(LookupError):
        system_machine(
            PlatformSpec.model_validate({"name": "demo", "cloud": "local", "owner": "a@example.com"})
        )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("accelerators_per_node = 4", "accelerators_per_node = 0"), "go together"),
        (("rdma_nics = 1", "rdma_nics = 0"), "go together"),
        (('cloud = "aws"', 'cloud = "awss"'), "cloud cannot be"),
        (('rdma = "efa"', 'rdma = "efaa"'), "rdma cannot be"),
        (("vcpu = 48", "vcpu = 4.5"), "vcpu cannot be"),
        (("memory_gib = 192", "memory_gib = 0"), "memory_gib cannot be"),
        (("memory_gib = 192", 'memory_gib = "192"'), "memory_gib cannot be"),
        (("vcpu = 48", "vcpus = 48"), "unknown columns"),
        (('source = "a file"', ""), "columns ['source'] are missing"),
        (('source = "a file"', 'source = ""'), "source cannot be"),
        (('source = "a file"', 'source = "a file"\nprice_date = "2026-01-01"'), "price_date cannot be"),
    ],
)
def test_a_wrong_catalogue_is_refused(change: tuple[str, str], says: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        read_catalogue(ROW.replace(*change))
    assert says in str(caught.value)


def test_a_machine_is_in_the_catalogue_once() -> None:
    with pytest.raises(CatalogueError, match="listed twice"):
        read_catalogue(ROW + ROW)


@pytest.mark.parametrize("cloud", [cloud for cloud in Cloud if sells_machines(cloud)])
def test_a_cloud_lists_only_its_own_machines(cloud: Cloud) -> None:
    rows = read_catalogue(machines_file(cloud).read_text(encoding="utf-8"))
    assert rows == tuple(each for each in catalogue() if each.cloud is cloud)
