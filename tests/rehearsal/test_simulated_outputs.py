"""What public programs read from the simulated clouds: ids, addresses and maps that every real one has."""

from __future__ import annotations

import ipaddress
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from trainfleet.rehearsal.simulation import functions
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
