"""The outputs of a component whose plugin does not run, from the classes of an SDK."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pulumi
import pytest
from pulumi.runtime.proto.provider_pb2 import ConstructRequest
from pulumi.runtime.proto.resource_pb2 import RegisterResourceResponse

from trainfleet.rehearsal.simulation.component_outputs import component_outputs, same_as_inputs
from trainfleet.rehearsal.simulation.components import Contents
from trainfleet.rehearsal.simulation.kubeconfig import active_cluster
from trainfleet.rehearsal.simulation.other_packages import OTHER_MODELS
from trainfleet.rehearsal.simulation.pulumi_values import (
    OUTPUT,
    RESOURCE,
    SIGNATURE,
    UNKNOWN,
    from_struct,
    resolved,
    secret,
)
from trainfleet.rehearsal.simulation.schema import Kind, Property, ResourceType, outputs_of, packages
from trainfleet.rehearsal.simulation.state import Cloud
from trainfleet.rehearsal.simulation.values import Identity


@pulumi.type_token("acme:network:Subnet")
class Subnet(pulumi.CustomResource):
    """What the component refers to."""


@pulumi.type_token("acme:index:Platform")
class Platform(pulumi.ComponentResource):
    """A component as `pulumi package add` generates it."""

    @property
    @pulumi.getter(name="vpcId")
    def vpc_id(self) -> pulumi.Output[str]: ...

    @property
    @pulumi.getter(name="publicSubnetIds")
    def public_subnet_ids(self) -> pulumi.Output[Sequence[str]]: ...

    @property
    @pulumi.getter(name="publicSubnets")
    def public_subnets(self) -> pulumi.Output[Sequence[Subnet]]: ...

    @property
    @pulumi.getter(name="privateSubnets")
    def private_subnets(self) -> pulumi.Output[Sequence[Subnet]]: ...

    @property
    @pulumi.getter
    def subnets(self) -> pulumi.Output[Sequence[Subnet]]: ...

    @property
    @pulumi.getter(name="bastionSubnet")
    def bastion_subnet(self) -> pulumi.Output[Subnet | None]: ...

    @property
    @pulumi.getter
    def kubeconfig(self) -> pulumi.Output[Any]: ...

    @property
    @pulumi.getter(name="kubeconfigJson")
    def kubeconfig_json(self) -> pulumi.Output[str]: ...

    @property
    @pulumi.getter(name="roleArn")
    def role_arn(self) -> pulumi.Output[str]: ...

    @property
    @pulumi.getter
    def anything(self) -> pulumi.Output[Any]: ...

    @property
    @pulumi.getter
    def size(self) -> pulumi.Output[int]: ...


IDENTITY = Identity("aws:acme:Platform", "ml", "0123456789abcdef0", "eu-central-1", "111122223333", {})


def refer(cls: type, path: tuple[str, ...], resource_id: str) -> str:
    return f"{cls.__name__} {'.'.join(path)} {resource_id}".strip()


@pytest.fixture
def made() -> dict[str, Any]:
    declared = ResourceType("acme:index:Platform", {}, outputs_of(Platform))
    return component_outputs(declared, {"size": 3}, IDENTITY, {"publicSubnetIds": 2}, refer)


def test_values_follow_the_names_and_types(made: dict[str, Any]) -> None:
    assert made["vpcId"].startswith("vpc-0")
    assert [each[:8] for each in made["publicSubnetIds"]] == ["subnet-0"] * 2
    assert len(set(made["publicSubnetIds"])) == 2
    assert made["roleArn"].startswith("arn:aws:")
    assert made["size"] == 3  # an input of the same name
    assert "anything" not in made


def test_an_input_that_says_how_to_make_a_resource_is_not_the_output_of_its_name() -> None:
    """`natGateways` of an awsx.ec2.Vpc: the strategy that is given, and the gateways that are made."""
    reference = Kind("resource", cls=Subnet)
    inputs = {
        "bastionSubnet": Property(Kind("object"), required=False),
        "publicSubnets": Property(Kind("list", reference), required=False),
    }
    declared = ResourceType("acme:index:Platform", inputs, outputs_of(Platform))
    given = {"bastionSubnet": {"strategy": "None"}, "publicSubnets": ["subnet-1"], "size": 3}
    assert same_as_inputs(declared, given) == {"publicSubnets": ["subnet-1"], "size": 3}
    made = component_outputs(declared, given, IDENTITY, {}, refer)
    assert (made["bastionSubnet"], made["publicSubnets"]) == ("Subnet bastionSubnet", ["subnet-1"])


def test_a_kubeconfig_is_one(made: dict[str, Any]) -> None:
    cluster = active_cluster(made["kubeconfig"])
    assert cluster is not None
    assert cluster["server"].startswith("https://")
    assert json.loads(made["kubeconfigJson"]) == made["kubeconfig"]


def test_resources_are_references_with_the_ids_of_other_outputs(made: dict[str, Any]) -> None:
    one, two = made["publicSubnetIds"]
    assert made["publicSubnets"] == [f"Subnet publicSubnets.0 {one}", f"Subnet publicSubnets.1 {two}"]
    assert made["privateSubnets"] == ["Subnet privateSubnets.0"]
    assert made["subnets"] == [*made["publicSubnets"], *made["privateSubnets"]]
    assert made["bastionSubnet"] == "Subnet bastionSubnet"


@pytest.mark.parametrize(
    ("inputs", "private", "public", "isolated", "gateways"),
    [
        ({}, 3, 3, 0, 3),
        ({"numberOfAvailabilityZones": 2, "natGateways": {"strategy": "Single"}}, 2, 2, 0, 1),
        ({"availabilityZoneNames": ["a"], "natGateways": {"strategy": "None"}}, 1, 1, 0, 0),
        ({"subnetSpecs": [{"type": "Isolated"}, {"type": "Public"}]}, 0, 3, 3, 3),
    ],
)
def test_a_network_of_awsx_has_its_subnets(
    inputs: dict[str, Any], private: int, public: int, isolated: int, gateways: int
) -> None:
    lengths = OTHER_MODELS["awsx"].lengths("awsx:ec2:Vpc", inputs)
    kinds = [lengths[f"{kind}SubnetIds"] for kind in ("private", "public", "isolated")]
    assert [*kinds, lengths["natGateways"]] == [private, public, isolated, gateways]


def test_an_output_that_is_an_input_of_a_component_is_its_value() -> None:
    assert resolved({"a": [{SIGNATURE: OUTPUT, "value": "b"}]}) == {"a": ["b"]}
    assert resolved({SIGNATURE: OUTPUT}) == UNKNOWN
    assert resolved({SIGNATURE: OUTPUT, "value": 1, "secret": True}) == secret(1)


def test_components_are_not_resources() -> None:
    kubernetes = packages()["kubernetes"]
    assert kubernetes.is_component("kubernetes:helm.sh/v4:Chart")
    assert not kubernetes.is_component("kubernetes:helm.sh/v3:Release")
    assert not kubernetes.is_component("kubernetes:nowhere/v1:Thing")


class Monitor:
    """Takes the place of the engine."""

    def __init__(self) -> None:
        self.registered: list[Any] = []

    def RegisterResource(self, request: Any) -> Any:
        self.registered.append(request)
        return RegisterResourceResponse(urn=f"urn::{request.name}", id="1")


def test_a_provider_in_a_deployed_component_keeps_its_settings() -> None:
    urn = "urn:pulumi:one::tiny::eks:index:Cluster$pulumi:providers:kubernetes::cluster-provider"
    cloud, monitor = Cloud(), Monitor()
    settings = {"kubeconfig": "of the cluster"}
    cloud.remember(
        [{"urn": urn, "type": "pulumi:providers:kubernetes", "custom": True, "id": "1", "inputs": settings}]
    )
    contents = Contents(
        ConstructRequest(type="eks:index:Cluster", name="cluster"), {}, cloud, monitor, "u", {}
    )
    reference = {SIGNATURE: RESOURCE, "urn": urn, "id": "1"}
    declared = ResourceType("eks:index:Cluster", {}, {})
    found = contents.outputs(declared, {"provider": reference, "others": [reference]})
    (request,) = monitor.registered
    assert (request.type, request.name, request.custom) == (
        "pulumi:providers:kubernetes",
        "cluster-provider",
        True,
    )
    assert from_struct(request.object) == settings
    assert found["provider"]["urn"] == "urn::cluster-provider"
    assert found["others"] == [found["provider"]]
