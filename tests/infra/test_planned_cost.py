"""What planned resources cost, by type and inputs: each kind of charge, what has no price, and what is assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError
from trainfleet.infra.catalog.cost import HOURS_PER_MONTH, Bill, CostLimits, prices
from trainfleet.infra.catalog.planned import FOLDERS, UNKNOWN, Plan, Planned, bill_of_plan, billed_types
from trainfleet.infra.catalog.usage import Usage, read_usage

NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
NODE_POOL = "gcp:container/nodePool:NodePool"
AGENT_POOL = "azure-native:containerservice:AgentPool"
SIZES = {"minSize": 1, "maxSize": 3}


def planned(kind: str, name: str = "it", /, **inputs: Any) -> Planned:
    return Planned(kind, name, inputs, f"urn::{name}")


def cost(*resources: Planned, usage: Usage | None = None) -> Bill:
    return bill_of_plan(Plan(resources), usage)


def lines(bill: Bill) -> dict[str, tuple[float, float]]:
    return {part.name: (part.least, part.most) for part in bill.parts}


AZURE_POOL = {"vmSize": "Standard_D4s_v5", "enableAutoScaling": True, "minCount": 1, "maxCount": 5}
CASES: list[tuple[Planned, dict[str, tuple[float, float]]]] = [
    (
        planned(NODE_GROUP, instanceTypes=["g5.xlarge"], scalingConfig=SIZES),
        {"it": (1, 3), "disk-gp2": (20, 60)},
    ),
    (
        planned("aws:ec2/instance:Instance", instanceType="g5.xlarge", rootBlockDevice={"volumeSize": 50}),
        {"it": (1, 1), "disk-gp2": (50, 50)},
    ),
    (
        planned("aws:ebs/volume:Volume", type="gp3", size=100, throughput=225, iops=4000),
        {"disk-gp3": (100, 100), "disk-gp3-throughput": (100, 100), "disk-gp3-iops": (1000, 1000)},
    ),
    (
        planned("aws:ebs/volume:Volume", type="io1", size=30, iops=300),
        {"disk-io1": (30, 30), "disk-io1-iops": (300, 300)},
    ),
    (
        planned("aws:ec2/vpcEndpoint:VpcEndpoint", vpcEndpointType="Interface", subnetIds=["a", UNKNOWN]),
        {"endpoint": (2, 2)},
    ),
    (planned("aws:ec2/vpcEndpoint:VpcEndpoint", serviceName="s3"), {}),
    (planned("aws:lb/loadBalancer:LoadBalancer"), {"load-balancer": (1, 1)}),
    (
        planned(
            "aws:fsx/lustreFileSystem:LustreFileSystem", storageCapacity=1200, perUnitStorageThroughput=250
        ),
        {"it": (1200, 1200)},
    ),
    (
        planned(
            NODE_POOL,
            autoscaling={"minNodeCount": 0, "maxNodeCount": 2},
            nodeLocations=["a", "b"],
            nodeConfig={"machineType": "e2-standard-4", "diskType": "pd-ssd", "diskSizeGb": 50},
        ),
        {"it": (0, 4), "disk-pd-ssd": (0, 200)},
    ),
    (
        planned(NODE_POOL, nodeCount=2, location="us-central1", nodeConfig={"machineType": "e2-standard-4"}),
        {"it": (6, 6), "disk-pd-balanced": (600, 600)},
    ),
    (
        planned(
            NODE_POOL, nodeCount=2, location="us-central1-a", nodeConfig={"machineType": "e2-standard-4"}
        ),
        {"it": (2, 2), "disk-pd-balanced": (200, 200)},
    ),
    (
        planned("gcp:container/cluster:Cluster", initialNodeCount=1, location="us-central1-a"),
        {"control-plane": (1, 1), "it/default-pool": (1, 1), "disk-pd-balanced": (100, 100)},
    ),
    (planned("gcp:compute/routerNat:RouterNat"), {"nat": (1, 1), "address": (1, 1)}),
    (planned("gcp:compute/routerNat:RouterNat", natIpAllocateOption="MANUAL_ONLY"), {"nat": (1, 1)}),
    (planned("gcp:compute/globalAddress:GlobalAddress", addressType="INTERNAL"), {}),
    (planned("gcp:compute/address:Address"), {"external-address": (1, 1)}),
    (planned("gcp:compute/disk:Disk", type="pd-ssd", size=300), {"disk-pd-ssd": (300, 300)}),
    (planned(AGENT_POOL, **AZURE_POOL), {"it": (1, 5), "disk-premium-P10": (1, 5)}),
    (planned(AGENT_POOL, **AZURE_POOL, osDiskType="Ephemeral"), {"it": (1, 5)}),
    (
        planned(
            "azure-native:containerservice/v20240901:ManagedCluster",
            sku={"tier": "Standard"},
            agentPoolProfiles=[{"name": "a", "vmSize": "Standard_D4s_v5", "count": 2}],
        ),
        {"control-plane": (1, 1), "it/a": (2, 2), "disk-premium-P10": (2, 2)},
    ),
    (planned("azure-native:containerservice:ManagedCluster", sku={"tier": "Free"}), {}),
    (
        planned("azure-native:compute:Disk", sku={"name": "StandardSSD_LRS"}, diskSizeGB=20),
        {"disk-standard-ssd-E4": (1, 1)},
    ),
    (planned("azure-native:containerregistry:Registry", sku={"name": "Basic"}), {"registry-Basic": (1, 1)}),
]


@pytest.mark.parametrize(
    ("resource", "expected"), CASES, ids=[f"{n}-{c[0].kind}" for n, c in enumerate(CASES)]
)
def test_a_resource_is_billed_by_its_inputs(
    resource: Planned, expected: dict[str, tuple[float, float]]
) -> None:
    found = cost(resource)
    assert (lines(found), found.not_known) == (expected, ())


def test_a_node_group_takes_machine_and_disk_from_its_launch_template() -> None:
    volume = {"volumeType": "gp3", "volumeSize": 200}
    template = planned(TEMPLATE, "t", instanceType="p5.48xlarge", blockDeviceMappings=[{"ebs": volume}])
    group = Planned(
        NODE_GROUP,
        "h100",
        {"launchTemplate": {"id": UNKNOWN}, "scalingConfig": SIZES},
        depends={"launchTemplate": ("urn::t",)},
    )
    found = cost(template, group)
    assert [(part.what, part.most) for part in found.parts] == [("p5.48xlarge", 3), ("EBS volume, gp3", 600)]
    # In a state there are ids, and no dependency may be recorded.
    applied = Planned(NODE_GROUP, "h100", {"launchTemplate": {"id": "lt-1"}, "scalingConfig": SIZES})
    identified = Planned(TEMPLATE, "t", template.inputs, "urn::t", "lt-1")
    assert lines(cost(identified, applied)) == lines(found)


def test_a_node_group_whose_launch_template_is_unknown_has_no_price() -> None:
    group = planned(NODE_GROUP, launchTemplate={"id": UNKNOWN}, scalingConfig=SIZES)
    assert cost(group).unknown == ("it",)


@pytest.mark.parametrize(
    "resource",
    [
        planned("aws:rds/instance:Instance"),
        planned("gcp:filestore/instance:Instance", tier="ZONAL", fileShares={"capacityGb": 1024}),
        planned("azure-native:storagecache:AmlFilesystem", sku={"name": "X"}, storageCapacityTiB=4),
        planned("aws:ec2/instance:Instance", instanceType="t3.medium"),
        planned(NODE_GROUP, instanceTypes=["g5.xlarge"], scalingConfig={"minSize": 1, "maxSize": UNKNOWN}),
    ],
    ids=lambda each: each.kind,
)
def test_what_has_no_price_is_named_and_never_zero(resource: Planned) -> None:
    found = cost(resource)
    assert found.unknown
    assert (found.not_known, found.max_usd_per_hour) == ((), 0)


def test_a_type_is_free_billed_or_not_known() -> None:
    found = cost(
        planned("aws:iam/role:Role"),
        planned("kubernetes:core/v1:ConfigMap"),
        planned("random:index/randomString:RandomString"),
        planned("aws:batch/computeEnvironment:ComputeEnvironment"),
        planned("kubernetes:crossplane.io/v1:Bucket"),
        planned("datadog:index/monitor:Monitor"),
    )
    assert found.parts == ()
    assert found.not_known == (
        "aws:batch/computeEnvironment:ComputeEnvironment",
        "kubernetes:crossplane.io/v1:Bucket",
        "datadog:index/monitor:Monitor",
    )


def test_a_price_of_another_region_is_named() -> None:
    provider = Planned("pulumi:providers:aws", "default", {"region": "eu-west-1"}, "urn::p")
    nat = Planned("aws:ec2/natGateway:NatGateway", "nat", {}, "urn::nat", provider="urn::p")
    (part,) = cost(provider, nat).parts
    assert (part.region, part.price_region, part.elsewhere) == ("eu-west-1", "us-east-1", True)
    pool = planned(
        NODE_POOL, nodeCount=1, location="europe-west4-a", nodeConfig={"machineType": "g2-standard-4"}
    )
    machine = cost(pool).parts[0]
    assert (machine.region, machine.price_region, machine.usd_per_hour) == (
        "europe-west4",
        "europe-west4",
        0.742916,
    )


@pytest.mark.parametrize(("region", "price"), [("us-east-1", 0.09), ("sa-east-1", 0.15)])
def test_traffic_costs_what_the_region_asks(region: str, price: float) -> None:
    vpc = planned("aws:ec2/vpc:Vpc", region=region)
    found = cost(vpc, usage=Usage(internet_gb=1000))
    assert found.min_usd_per_hour * HOURS_PER_MONTH == pytest.approx(1000 * price)
    assert found.elsewhere == ()


def test_what_is_used_is_priced_only_where_something_uses_it() -> None:
    bucket = planned("aws:s3/bucket:Bucket", region="us-east-1")
    usage = Usage(objects_gib=1000, objects_growth_gib_per_month=100, after_months=5, nat_gb=7)
    found = cost(bucket, usage=usage)
    assert found.min_usd_per_hour * HOURS_PER_MONTH == pytest.approx(1500 * 0.023)
    assert found.unused_usage == ("nat_gb",)
    assert cost(bucket).by_usage == (
        prices()["aws"]["objects"]["what"],
        "requests to stores, keys and secrets",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("egress_gb = 1", "egress_gb"),
        ("nat_gb = -1", "nat_gb"),
        ("nat_gb = ", "not TOML"),
        ("objects_growth_gib_per_month = 5", "after_months"),
    ],
)
def test_a_wrong_usage_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "usage.toml"
    file.write_text(text)
    with pytest.raises(InputError, match="usage file") as caught:
        read_usage(file)
    assert message in str([caught.value.summary, *map(str, caught.value.problems)])


def test_the_documented_usage_file_is_read() -> None:
    from trainfleet.infra.catalog import usage

    example = "\n".join(line.strip() for line in (usage.__doc__ or "").splitlines() if "=" in line)
    assert read_text(example) == 20000 + 6 * 1500


def read_text(text: str) -> float:
    import tomllib

    return Usage.model_validate(tomllib.loads(text)).quantities()["objects"][1]


def test_a_limit_is_exceeded_only_by_what_is_above_it() -> None:
    found = cost(planned(NODE_GROUP, instanceTypes=["g5.xlarge"], scalingConfig=SIZES, region="us-east-1"))
    month = found.min_usd_per_hour * HOURS_PER_MONTH
    assert CostLimits(always=month + 1).exceeded(found) == []
    assert len(CostLimits(always=month - 1).exceeded(found)) == 1
    assert len(CostLimits(always=month - 1, largest=month).exceeded(found)) == 2


def test_a_budget_is_read_from_the_plan() -> None:
    budget = planned(
        "aws:budgets/budget:Budget",
        budgetType="COST",
        limitAmount="2000",
        limitUnit="USD",
        timeUnit="MONTHLY",
    )
    assert cost(budget).budget_usd_per_month == 2000
    assert (
        cost(planned("aws:budgets/budget:Budget", timeUnit="DAILY", limitAmount="9")).budget_usd_per_month
        is None
    )


@pytest.mark.parametrize("folder", FOLDERS.values())
def test_no_type_is_both_free_and_billed(folder: str) -> None:
    from importlib import import_module

    types = billed_types(folder)
    billed = {*import_module(f"trainfleet.infra.{folder}.costs").CHARGES, *types.usage}
    assert {kind for kind in billed if types.is_free(kind)} == set()


@pytest.mark.parametrize("package", ["aws", "gcp", "azure-native"])
def test_every_listed_type_exists(package: str) -> None:
    from importlib import import_module

    from trainfleet.rehearsal.simulation.schema import packages

    types, folder = billed_types(FOLDERS[package]), FOLDERS[package]
    costs = import_module(f"trainfleet.infra.{folder}.costs")
    listed = {*types.free, *types.usage, *costs.CHARGES, *costs.BUDGETS}
    known = {Planned(kind, "", {}).kind for kind in packages()[package].classes}
    assert {kind for kind in listed if kind not in known} == set()


def test_a_bill_is_the_same_in_whichever_order_the_engine_plans() -> None:
    keys = [planned("aws:kms/key:Key", name, region="us-east-1") for name in "abc"]
    assert cost(*keys) == cost(*reversed(keys))
