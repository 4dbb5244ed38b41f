"""What providers compute and normalize, and ids that look like the cloud's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearse
from trainfleet.rehearsal.simulation.normalization import normalized
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
from trainfleet.rehearsal.simulation.schema import packages


def outputs(token: str, resource_id: str, **inputs: Any) -> dict[str, Any]:
    cloud = token.split(":", 1)[0]
    model, resource = CLOUD_MODELS[cloud], packages()[cloud].resource(token)
    return model.outputs(resource, token, inputs, "n", resource_id, "us-east-1", preview=False)


def test_ids_of_a_vpc_look_like_those_of_ec2() -> None:
    vpc = outputs("aws:ec2/vpc:Vpc", "vpc-1", cidrBlock="10.0.0.0/16")
    prefixes = {name: vpc[name].split("-")[0] for name in vpc if name.endswith("Id")}
    assert vpc["mainRouteTableId"] == vpc["defaultRouteTableId"]
    assert {
        name: prefixes[name] for name in ("mainRouteTableId", "defaultNetworkAclId", "dhcpOptionsId")
    } == {
        "mainRouteTableId": "rtb",
        "defaultNetworkAclId": "acl",
        "dhcpOptionsId": "dopt",
    }


@pytest.mark.parametrize(
    ("token", "prefix"),
    [
        ("aws:efs/fileSystem:FileSystem", "fs-0"),
        ("aws:efs/mountTarget:MountTarget", "fsmt-0"),
        ("aws:ec2/networkInterface:NetworkInterface", "eni-0"),
        ("aws:ec2/vpcPeeringConnection:VpcPeeringConnection", "pcx-0"),
        ("aws:ebs/volume:Volume", "vol-0"),
    ],
)
def test_an_id_has_the_prefix_of_its_type(token: str, prefix: str) -> None:
    assert token in packages()["aws"].classes
    assert CLOUD_MODELS["aws"].make_id(token, {}, "name", "0123456789abcdef" * 2).startswith(prefix)


def test_the_container_of_a_static_website_is_web() -> None:
    token = "azure-native:storage:StorageAccountStaticWebsite"
    assert outputs(token, "/x", accountName="a", resourceGroupName="g")["containerName"] == "$web"


def test_default_tags_of_the_provider_are_in_tags_all() -> None:
    settings = {"defaultTags": '{"tags": {"team": "ml", "a": "default"}}'}
    found = normalized({"tags": {"a": "b"}, "tagsAll": {"a": "b"}}, settings)
    assert found == {"tags": {"a": "b"}, "tagsAll": {"team": "ml", "a": "b"}}


def test_documents_are_normalized_in_outputs() -> None:
    assert normalized({"policy": '{"b": 1, "a": [ 2 ]}', "userData": '{"b": 1, "a": 2}'}, {}) == {
        "policy": '{"a":[2],"b":1}',
        "userData": '{"b": 1, "a": 2}',
    }


GROUP = (
    'group = aws.ec2.SecurityGroup("g", ingress={inline})\n'
    'aws.ec2.SecurityGroupRule("r", security_group_id=group.id, type="ingress", protocol="tcp",'
    ' from_port=80, to_port=80, cidr_blocks=["10.0.0.0/8"])'
)


@pytest.mark.deep
def test_rules_in_a_group_and_next_to_it_never_settle(engine: Engine, program: Callable[[str], Path]) -> None:
    inline = '[{"protocol": "tcp", "from_port": 443, "to_port": 443, "cidr_blocks": ["10.0.0.0/8"]}]'
    folder = program(GROUP.format(inline=inline))
    report = rehearse(read_project(folder), engine, RehearsalOptions(until="refresh"))
    assert [step.name for step in report.steps if not step.ok] == ["refresh"], report.problems


@pytest.mark.deep
def test_rules_next_to_a_group_settle(engine: Engine, program: Callable[[str], Path]) -> None:
    folder = program(GROUP.format(inline="None"))
    report = rehearse(read_project(folder), engine, RehearsalOptions(until="refresh"))
    assert report.ok, report.problems
