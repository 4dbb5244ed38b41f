"""What public programs showed to be right, and the mistake next to it that is still rejected."""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.rehearsal.simulation import functions
from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.check_harness import capture
from trainfleet.rehearsal.simulation.docstrings import read
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
from trainfleet.rehearsal.simulation.schema import packages
from trainfleet.rehearsal.simulation.state import Cloud

AKS, POOL = "azure-native:containerservice:ManagedCluster", "azure-native:containerservice:AgentPool"
CONTAINERS = "azure-native:containerinstance:ContainerGroup"


def found(token: str, **inputs: Any) -> list[Mistake]:
    package = token.split(":", 1)[0]
    return CLOUD_MODELS[package].check(packages()[package], token, inputs)


def pool(name: str, system: str = "Linux") -> list[Mistake]:
    return found(POOL, agentPoolName=name, resourceGroupName="g", resourceName="aks", osType=system)


def test_only_a_windows_pool_has_a_name_of_six_characters() -> None:
    profile = {"name": "agentpool", "count": 1, "vmSize": "Standard_DS2_v2", "mode": "System"}
    assert found(AKS, resourceGroupName="g", dnsPrefix="p", agentPoolProfiles=[profile]) == []
    assert pool("agentpool") == []
    assert pool("win123", "Windows") == []
    (mistake,) = pool("winpool", "Windows")
    assert (mistake.path, mistake.source) == ("agentPoolName", "rule: AKS API reference, agentPools")


@pytest.mark.parametrize(
    ("text", "high"),
    [
        ("A unique name. Windows agent pool names must be 6 characters or less.", None),
        ("The name of the pool, 6 characters or less. Windows and Linux pools have one.", 6),
        ("A name on Windows and Linux must be 6 characters or less.", 6),
    ],
)
def test_a_limit_of_some_resources_does_not_limit_the_others(text: str, high: int | None) -> None:
    assert read(text).length[1] == high


def group(**more: Any) -> list[Mistake]:
    resources = {"requests": {"cpu": 1.0, "memoryInGB": 1.5}}
    container = {"name": "web", "image": "example.com/web", "resources": resources}
    return found(CONTAINERS, resourceGroupName="g", containers=[container], osType="Linux", **more)


@pytest.mark.parametrize(("policy", "protocol"), [("always", "Tcp"), ("OnFailure", "UDP")])
def test_container_instances_take_any_capitals(policy: str, protocol: str) -> None:
    address = {"type": "Public", "ports": [{"port": 80, "protocol": protocol}]}
    assert group(restartPolicy=policy, ipAddress=address) == []


def test_another_word_is_rejected_with_the_values() -> None:
    address = {"type": "Public", "ports": [{"port": 80, "protocol": "http"}]}
    found = group(restartPolicy="sometimes", ipAddress=address)
    assert [(each.path, each.fix) for each in found] == [
        ("restartPolicy", "Always, OnFailure or Never"),
        ("ipAddress.ports[0].protocol", "TCP or UDP"),
    ]


def test_a_component_of_the_program_is_not_checked_as_a_resource() -> None:
    """A chart of `helm.v3` is rendered by the SDK: the provider sees its objects, and not the chart."""

    def program() -> None:
        import pulumi
        import pulumi_kubernetes as k8s

        pulumi.ComponentResource("kubernetes:helm.sh/v3:Chart", "chart")
        k8s.core.v1.ConfigMap("map")

    assert [(each.name, each.checked) for each in capture(program)] == [("chart", False), ("map", True)]


@pytest.mark.parametrize("most_recent", ["true", True])
def test_arguments_that_a_result_repeats_have_its_types(most_recent: str | bool) -> None:
    """A bridged provider converts "true"; the SDK refuses a result that has text for a boolean."""

    def program() -> None:
        import pulumi_aws as aws

        ami = aws.ec2.get_ami(most_recent=most_recent, owners=["amazon"])
        aws.ec2.Instance("server", ami=ami.id, instance_type="t3.micro")

    assert [each.name for each in capture(program)] == ["server"]
    answer = functions.result(
        packages()["aws"],
        CLOUD_MODELS["aws"],
        Cloud(),
        "aws:ec2/getVpc:getVpc",
        {"default": str(most_recent).lower()},
        "us-west-2",
    )
    assert answer["default"] is True
