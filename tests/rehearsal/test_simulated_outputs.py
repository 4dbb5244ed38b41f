"""What public programs read from the simulated clouds: ids, addresses and maps that every real one has."""

from __future__ import annotations

import base64
import ipaddress
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from trainfleet.rehearsal.simulation import functions
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
from trainfleet.rehearsal.simulation.pulumi_values import SIGNATURE, UNKNOWN
from trainfleet.rehearsal.simulation.schema import packages, sdk_module
from trainfleet.rehearsal.simulation.state import Cloud


def outputs(
    token: str, inputs: dict[str, Any], name: str = "thing", *, preview: bool = False
) -> dict[str, Any]:
    package = packages()[token.split(":", 1)[0]]
    model = CLOUD_MODELS[package.name]
    return model.outputs(package.resource(token), token, inputs, name, name, "us-east-2", preview=preview)


def answer(token: str, args: dict[str, Any], cloud: Cloud | None = None) -> dict[str, Any]:
    package = packages()[token.split(":", 1)[0]]
    model = CLOUD_MODELS[package.name]
    return functions.result(package, model, cloud or Cloud(), token, args, "us-east-2")


@pytest.mark.parametrize(
    ("token", "prefix"),
    [
        ("aws:ec2/getSubnets:getSubnets", "subnet"),
        ("aws:ec2/getSecurityGroups:getSecurityGroups", "sg"),
        ("aws:ec2/getVpcs:getVpcs", "vpc"),
        ("aws:ec2/getNatGateways:getNatGateways", "nat"),
    ],
)
def test_the_ids_of_a_list_are_of_its_type(token: str, prefix: str) -> None:
    cloud = Cloud()
    found = answer(token, {"filters": [{"name": "tag:a", "values": ["b"]}]}, cloud)
    assert re.fullmatch(rf"{prefix}-0[0-9a-f]{{16}}", found["ids"][0])
    assert token in str(cloud.missing), "it is still an answer that the project has to give"


def test_a_graphql_api_has_its_uris() -> None:
    token = "aws:appsync/graphQLApi:GraphQLApi"
    uris = outputs(token, {"authenticationType": "API_KEY"})["uris"]
    assert uris["GRAPHQL"].startswith("https://")
    assert ".appsync-api.us-east-2.amazonaws.com/graphql" in uris["GRAPHQL"]
    assert uris["REALTIME"].startswith("wss://")
    assert outputs(token, {"authenticationType": "API_KEY"}, preview=True)["uris"] == UNKNOWN


def test_a_service_has_a_cluster_ip_unless_it_has_none() -> None:
    token = "kubernetes:core/v1:Service"
    for inputs in ({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}, {}):
        ipaddress.ip_address(outputs(token, inputs)["spec"]["clusterIP"])
    assert outputs(token, {"spec": {"clusterIP": "None"}})["spec"]["clusterIP"] == "None"
    assert (
        "clusterIP" not in outputs(token, {"spec": {"type": "ExternalName", "externalName": "a.b"}})["spec"]
    )
    assert outputs(token, {"spec": {"ports": []}}, preview=True)["spec"]["clusterIP"] == UNKNOWN
    secret = {SIGNATURE: "1b47061264138c4ac30d75fd1eb44270", "value": {"ports": []}}
    assert outputs(token, {"spec": secret})["spec"] == secret


def test_a_pod_has_an_address_once_it_runs() -> None:
    inputs = {"metadata": {"name": "p"}, "spec": {"containers": []}}
    status = outputs("kubernetes:core/v1:Pod", inputs)["status"]
    assert (status["phase"], ipaddress.ip_address(status["podIP"]).version) == ("Running", 4)
    assert outputs("kubernetes:core/v1:Pod", inputs, preview=True)["status"] == UNKNOWN


@pytest.mark.parametrize(
    ("object_id", "metadata"),
    [("web/front", {"name": "front", "namespace": "web"}), ("front", {"name": "front"})],
)
def test_an_object_that_is_read_by_its_id_has_its_name(object_id: str, metadata: dict[str, str]) -> None:
    assert metadata.items() <= outputs("kubernetes:core/v1:Service", {}, object_id)["metadata"].items()


SLOW_SDK = "import time\ntime.sleep(0.2)\nclass Bucket: ...\noutputs = None\n"


def test_threads_never_see_a_module_of_an_sdk_half_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.12, a lazy module (importlib.util.LazyLoader) is visible while it executes."""
    from pulumi._utils import lazy_import

    (tmp_path / "slow_sdk.py").write_text(SLOW_SDK)
    monkeypatch.syspath_prepend(str(tmp_path))
    lazy_import("slow_sdk")
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda: found.append(hasattr(sdk_module("slow_sdk"), "Bucket")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.delitem(sys.modules, "slow_sdk")
    assert found == [True] * 4


VPC, SUBNETS, SUBNET = "aws:ec2/getVpc:getVpc", "aws:ec2/getSubnets:getSubnets", "aws:ec2/getSubnet:getSubnet"


def test_an_account_has_a_default_vpc_with_a_subnet_in_each_zone() -> None:
    cloud = Cloud()
    vpc = answer(VPC, {"default": True}, cloud)
    assert answer(VPC, {"filters": [{"name": "is-default", "values": ["true"]}]}, cloud)["id"] == vpc["id"]
    assert answer(VPC, {"id": vpc["id"]}, cloud)["cidrBlock"] == vpc["cidrBlock"] == "172.31.0.0/16"
    ids = answer(SUBNETS, {"filters": [{"name": "vpc-id", "values": [vpc["id"]]}]}, cloud)["ids"]
    subnets = [answer(SUBNET, {"id": each}, cloud) for each in ids]
    assert sorted(each["availabilityZone"] for each in subnets) == ["us-east-2a", "us-east-2b", "us-east-2c"]
    ranges = [ipaddress.ip_network(each["cidrBlock"]) for each in subnets]
    assert all(each.subnet_of(ipaddress.ip_network("172.31.0.0/16")) for each in ranges)
    assert {each["vpcId"] for each in subnets} == {vpc["id"]}
    assert not cloud.missing


@pytest.mark.parametrize(
    ("token", "args"),
    [
        (VPC, {"id": "vpc-0123456789abcdef0"}),
        (
            VPC,
            {
                "default": True,
                "filters": [{"name": "tag:team", "values": ["a"]}, {"name": "x", "values": []}],
            },
        ),
        (SUBNETS, {"filters": [{"name": "vpc-id", "values": ["vpc-0123456789abcdef0"]}]}),
        (SUBNETS, {"filters": [{"name": "tag:tier", "values": ["private"]}]}),
        (SUBNET, {"id": "subnet-0123456789abcdef0"}),
    ],
)
def test_what_only_the_real_account_knows_is_still_asked_for(token: str, args: dict[str, Any]) -> None:
    cloud = Cloud()
    answer(token, args, cloud)
    assert len(cloud.missing) == 1


def test_subnets_of_a_vpc_of_the_program_are_listed() -> None:
    cloud = Cloud()
    inputs = {"vpcId": "vpc-0aaaaaaaaaaaaaaaa"}
    cloud.create(CloudObject("urn::a", "aws:ec2/subnet:Subnet", "subnet-1", "", inputs, inputs), 0)
    asked = {"filters": [{"name": "vpc-id", "values": ["vpc-0aaaaaaaaaaaaaaaa"]}]}
    assert answer(SUBNETS, asked, cloud)["ids"] == ["subnet-1"]


def test_registries_answer_with_credentials() -> None:
    token = answer("aws:ecr/getAuthorizationToken:getAuthorizationToken", {})
    assert base64.b64decode(token["authorizationToken"]).decode() == f"AWS:{token['password']}"
    held = answer("azure-native:containerregistry:listRegistryCredentials", {"registryName": "team"})
    assert held["username"] == "team"
    assert [each["name"] for each in held["passwords"]] == ["password", "password2"]


def test_a_project_is_found_by_its_filter() -> None:
    token = "gcp:projects/getProject:getProject"
    (project,) = answer(token, {"filter": "name:team-a", "project": "other"})["projects"]
    assert project["projectId"] == "team-a"
    assert answer(token, {"filter": "labels.a:b", "project": "other"})["projects"][0]["projectId"] == "other"


MANIFEST = """
kind: Pod
apiVersion: v1
---
---
kind: List
items:
- {kind: Secret}
- {kind: Service}
"""


def test_a_manifest_is_decoded() -> None:
    found = answer("kubernetes:yaml:decode", {"text": MANIFEST})["result"]
    assert [each["kind"] for each in found] == ["Pod", "Secret", "Service"]


@pytest.mark.parametrize("text", ["a: [", "- a", "text"])
def test_what_is_not_a_manifest_is_an_error(text: str) -> None:
    with pytest.raises(LookupError, match="the manifest"):
        answer("kubernetes:yaml:decode", {"text": text})
