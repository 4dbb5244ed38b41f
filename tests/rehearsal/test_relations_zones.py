"""Zones that a control plane keeps: the right and the wrong change, by record."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rehearsal.test_relations import record
from trainfleet.rehearsal.simulation.state import Cloud, RefusedError

EKS = "aws:eks/cluster:Cluster"
SUBNETS = {"subnet-a": "us-east-2a", "subnet-b": "us-east-2b", "subnet-a2": "us-east-2a"}
SUBNETS |= {"subnet-c": "us-east-2c"}


def inputs(*subnets: str) -> dict[str, Any]:
    return {"name": "lab", "vpcConfig": {"subnetIds": list(subnets)}}


def cloud() -> Cloud:
    there = Cloud()
    for name, zone in SUBNETS.items():
        there.create(record("aws:ec2/subnet:Subnet", name, availabilityZone=zone))
    there.create(record(EKS, "lab", **inputs("subnet-a", "subnet-b")))
    return there


def change(there: Cloud, *subnets: str) -> None:
    there.update(EKS, "lab", f"urn:pulumi:s::p::{EKS}::lab", inputs(*subnets), {})


@pytest.mark.parametrize(
    "subnets", [("subnet-a", "subnet-b", "subnet-c"), ("subnet-a", "subnet-c"), ("subnet-b", "subnet-c")]
)
def test_a_control_plane_gets_no_other_zones(subnets: tuple[str, ...]) -> None:
    with pytest.raises(RefusedError, match=r"must stay in the zones us-east-2a, us-east-2b, and would be in"):
        change(cloud(), *subnets)


@pytest.mark.parametrize(
    "subnets",
    [("subnet-a", "subnet-b", "subnet-a2"), ("subnet-a2", "subnet-b"), ("subnet-a", "subnet-elsewhere")],
)
def test_a_control_plane_may_get_other_subnets_of_its_zones(subnets: tuple[str, ...]) -> None:
    change(cloud(), *subnets)
