"""`network.encryption`: which machines of the catalog encrypt, and what is declared for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.infra.azure.platforms import SMALL, SUBSCRIPTION
from tests.infra.lifecycle import run_lifecycle
from trainfleet.errors import InputError
from trainfleet.infra.catalog.machines import catalogue
from trainfleet.infra.cloud_support import support
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.load import parse_spec

# The simulated provider reads every class of the SDK, the old ones too, and those warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

AZURE_ENCRYPTS = {
    "Standard_D4s_v5",
    "Standard_D8s_v5",
    "Standard_D16s_v5",
    "Standard_NC40ads_H100_v5",
    "Standard_NC80adis_H100_v5",
}
"""Of the requirements of Virtual Network encryption. ND H100 v5 and ND H200 v5 are not in them."""


def encrypts(cloud: Cloud, instance_type: str) -> bool:
    return bool(re.fullmatch(support(cloud).encrypting_machines, instance_type.removeprefix("ml.")))


@pytest.mark.parametrize("cloud", [Cloud.AWS, Cloud.GCP, Cloud.AZURE])
def test_the_machines_that_encrypt_are_those_of_the_clouds_documentation(cloud: Cloud) -> None:
    types = {each.instance_type for each in catalogue() if each.cloud is cloud}
    expected = AZURE_ENCRYPTS if cloud is Cloud.AZURE else types
    assert {each for each in types if encrypts(cloud, each)} == expected


@pytest.mark.parametrize("cloud", [Cloud.AWS, Cloud.GCP, Cloud.AZURE])
def test_the_nodes_of_operators_and_heads_encrypt_on_every_cloud(cloud: Cloud) -> None:
    """A token of Ray travels between these."""
    nodes = [each for each in catalogue() if each.cloud is cloud and each.accelerator is None]
    assert len(nodes) == 3
    assert all(encrypts(cloud, each.instance_type) for each in nodes)


@pytest.mark.parametrize("other", ["t3.large", "m5.large", "p3.16xlarge", "p5x.48xlarge"])
def test_another_machine_of_aws_is_not_assumed_to_encrypt(other: str) -> None:
    assert not encrypts(Cloud.AWS, other)


def document(accelerator: str, **network: Any) -> dict[str, Any]:
    pool = {"name": "gpu", "accelerator": accelerator, "max_nodes": 2}
    return {**SMALL, "network": {**SMALL["network"], **network}, "gpu_pools": [pool]}


def test_a_pool_that_azure_cannot_encrypt_is_rejected_with_machines_that_it_can() -> None:
    with pytest.raises(InputError, match="Standard_NC40ads_H100_v5, Standard_NC80adis_H100_v5") as caught:
        parse_spec(document("T4", encryption=True))
    (problem,) = caught.value.problems
    assert problem.where == "gpu_pools[0].instance_type"
    assert problem.what == "azure is not known to encrypt the traffic of Standard_NC4as_T4_v3"
    assert parse_spec(document("T4")).network.encryption is False


@pytest.mark.parametrize("encryption", [True, False])
@pytest.mark.deep
def test_azure_encrypts_the_virtual_network_of_the_platform(root: Path, encryption: bool) -> None:
    settings = {"azure-native:location": "eastus", "azure-native:subscriptionId": SUBSCRIPTION}
    changed = {**settings, "trainfleet:platform": document("H100", encryption=encryption)}
    life = run_lifecycle(root, "azure-dev", changed)
    expected = {"enabled": True, "enforcement": "AllowUnencrypted"} if encryption else None
    assert life.inputs["lab-vnet"].get("encryption") == expected
    assert life.left == 0
