"""Limits that the validation of a spec and the simulated clouds share are written once, and mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.infra.azure.test_rules import changed as azure
from tests.infra.gcp.test_rules import changed as gcp
from tests.infra.test_rules import changed as aws_or_local
from trainfleet.api_limits import limits
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.rules import violations
from trainfleet.rehearsal.simulation.json_schema import fault
from trainfleet.rehearsal.simulation.kubernetes_types import label_key_fault
from trainfleet.rehearsal.simulation.rules import broken, rules

SHARED = "storage.shared_filesystem"
LOGS = "kubernetes.log_retention_days"
SPECS: dict[str, Callable[[dict[str, Any]], PlatformSpec]] = {
    "aws": lambda changes: aws_or_local("aws", changes),
    "gcp": gcp,
    "azure": azure,
}
PERSISTENT = {"deploymentType": "PERSISTENT_2"}


def rejected(spec: PlatformSpec, path: str) -> bool:
    return any(".".join(map(str, finding.where)).startswith(path) for finding in violations(spec))


LIMITS = [
    ("aws", LOGS, (30, 31, 365, 366, 3653, 3654), "cloudwatch/logGroup:LogGroup", "retentionInDays", {}),
    ("azure", LOGS, (29, 30, 730, 731), "operationalinsights:Workspace", "retentionInDays", {}),
    ("gcp", LOGS, (1, 3650, 3651), "logging/projectBucketConfig:ProjectBucketConfig", "retentionDays", {}),
]


@pytest.mark.parametrize(("cloud", "path", "values", "short", "name", "more"), LIMITS)
def test_a_number_is_rejected_in_the_spec_if_and_only_if_it_is_in_the_resource(
    cloud: str, path: str, values: tuple[int, ...], short: str, name: str, more: dict[str, object]
) -> None:
    package = "azure-native" if cloud == "azure" else cloud
    verdicts = []
    for value in values:
        in_spec = rejected(SPECS[cloud]({path: value}), path)
        assert in_spec is bool(broken(package, f"{package}:{short}", {name: value, **more})), value
        verdicts.append(in_spec)
    assert set(verdicts) == {True, False}


SIZES = [
    (
        "aws",
        {"kind": "lustre"},
        1200,
        True,
        "fsx/lustreFileSystem:LustreFileSystem",
        "storageCapacity",
        PERSISTENT,
    ),
    (
        "aws",
        {"kind": "lustre"},
        3600,
        False,
        "fsx/lustreFileSystem:LustreFileSystem",
        "storageCapacity",
        PERSISTENT,
    ),
    (
        "aws",
        {"kind": "lustre"},
        4800,
        True,
        "fsx/lustreFileSystem:LustreFileSystem",
        "storageCapacity",
        PERSISTENT,
    ),
    (
        "gcp",
        {"kind": "lustre", "throughput_mbps_per_tib": 500},
        18000,
        True,
        "lustre/instance:Instance",
        "capacityGib",
        {"perUnitStorageThroughput": "500"},
    ),
    (
        "gcp",
        {"kind": "lustre", "throughput_mbps_per_tib": 500},
        9000,
        False,
        "lustre/instance:Instance",
        "capacityGib",
        {"perUnitStorageThroughput": "500"},
    ),
    ("gcp", {"kind": "nfs"}, 1023, False, "filestore/instance:Instance", "fileShares.capacityGb", {}),
    ("gcp", {"kind": "nfs"}, 1024, True, "filestore/instance:Instance", "fileShares.capacityGb", {}),
    (
        "azure",
        {"kind": "lustre", "throughput_mbps_per_tib": 250},
        8 * 1024,
        True,
        "storagecache:AmlFilesystem",
        "storageCapacityTiB",
        {"sku": {"name": "AMLFS-Durable-Premium-250"}},
    ),
    (
        "azure",
        {"kind": "lustre", "throughput_mbps_per_tib": 250},
        12 * 1024,
        False,
        "storagecache:AmlFilesystem",
        "storageCapacityTiB",
        {"sku": {"name": "AMLFS-Durable-Premium-250"}},
    ),
]


@pytest.mark.parametrize(("cloud", "asked", "size", "sold", "short", "path", "more"), SIZES)
def test_a_size_that_is_not_sold_is_rejected_in_both(
    cloud: str,
    asked: dict[str, object],
    size: int,
    sold: bool,
    short: str,
    path: str,
    more: dict[str, object],
) -> None:
    package = "azure-native" if cloud == "azure" else cloud
    assert rejected(SPECS[cloud]({SHARED: {**asked, "capacity_gib": size}}), f"{SHARED}.capacity") is not sold
    value = size // 1024 if cloud == "azure" else size
    outer, _, inner = path.partition(".")
    inputs = {outer: {inner: value} if inner else value, **more}
    found = [mistake.path for mistake in broken(package, f"{package}:{short}", inputs)]
    assert (path in found) is not sold, found


@pytest.mark.parametrize(
    "key", ["team", "example.com/team", "a..b/team", "-a.com/team", "a/-team", "A.com/team"]
)
def test_a_key_of_a_label_is_valid_in_the_spec_if_kubernetes_accepts_it(key: str) -> None:
    spec = aws_or_local("aws", {"gpu_pools[0].labels": {key: "x"}})
    found = [finding for finding in violations(spec) if "not a valid label key" in finding.what]
    assert bool(found) is bool(label_key_fault(key))


def test_every_shared_limit_is_json_schema_with_a_source() -> None:
    for name, entry in limits().items():
        assert len(entry["source"]) > 10, name
        assert not fault(entry), name


def test_every_shared_limit_of_a_cloud_limits_a_resource() -> None:
    used = {
        row.get("limit")
        for cloud in ("aws", "gcp", "azure-native")
        for rule in rules(cloud)
        for row in rule.rows
    }
    assert {name for name in limits() if not name.startswith("kubernetes.")} == used - {None}
