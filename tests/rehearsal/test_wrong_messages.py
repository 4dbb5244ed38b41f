"""A simulated provider answers with what is wrong, and where, whatever a program sends."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import pytest
from pulumi.runtime.proto import provider_pb2 as pb

from trainfleet.rehearsal.simulation.custom_resources import schemas_of
from trainfleet.rehearsal.simulation.provider import SimulatedProvider
from trainfleet.rehearsal.simulation.pulumi_values import to_struct
from trainfleet.rehearsal.simulation.schema import packages
from trainfleet.rehearsal.simulation.state import Cloud

QUEUE = "aws:sqs/queue:Queue"
POLICY = "aws:iam/getPolicyDocument:getPolicyDocument"


class Context:
    def peer(self) -> str:
        return "engine"

    def abort(self, code: Any, details: str) -> NoReturn:
        raise ConnectionAbortedError(f"{code.name}: {details}")


@pytest.fixture
def aws() -> SimulatedProvider:
    return SimulatedProvider(packages()["aws"], Cloud(), {})


def test_a_number_that_is_not_finite_is_rejected_with_its_path(aws: SimulatedProvider) -> None:
    news = to_struct({"tags": {}, "delays": [{"seconds": 1}]})
    news["delays"][0]["seconds"] = math.nan
    answer = aws.Check(pb.CheckRequest(urn="a::b", type=QUEUE, news=news), Context())
    assert [each.reason for each in answer.failures] == [
        "delays[0].seconds: is NaN or infinite, which no API accepts"
    ]
    assert list(aws.cloud.mistakes) == ["a::b"]
    assert aws.CheckConfig(pb.CheckRequest(urn="c::d", news=news), Context()).failures


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            {"statements": [{"conditions": {"test": "StringEquals"}}]},
            f"INVALID_ARGUMENT: {POLICY}: statements[0].conditions: must be a list, not {{'test': 'StringEquals'}}",
        ),
        ({"statements": "all"}, f"INVALID_ARGUMENT: {POLICY}: statements: must be a list, not 'all'"),
    ],
)
def test_arguments_of_a_function_have_the_types_of_the_sdk(
    aws: SimulatedProvider, args: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConnectionAbortedError) as caught:
        aws.Invoke(pb.InvokeRequest(tok=POLICY, args=to_struct(args)), Context())
    assert message in str(caught.value)


def test_a_function_without_optional_arguments_is_answered(aws: SimulatedProvider) -> None:
    statements = [{"actions": ["sts:AssumeRole"], "conditions": None}, None]
    args = to_struct({"statements": statements, "version": None})
    assert aws.Invoke(pb.InvokeRequest(tok=POLICY, args=args), Context())


@pytest.mark.parametrize("versions", [3, "v1", [1], [{"schema": "x"}], {"a": 1}])
def test_a_definition_of_the_wrong_shape_has_no_schemas(versions: Any) -> None:
    assert schemas_of({"spec": {"versions": versions, "names": {"kind": "Gpu"}, "group": "a"}}) == {}


@pytest.mark.parametrize("before", [["list"], "text", {"annotations": None}])
def test_an_object_is_named_whatever_its_metadata_were(before: Any) -> None:
    provider = SimulatedProvider(packages()["kubernetes"], Cloud(), {})
    token = "kubernetes:core/v1:ConfigMap"
    check = pb.CheckRequest(
        urn="a::it", type=token, olds=to_struct({"metadata": before}), news=to_struct({"data": {"a": "b"}})
    )
    answer = provider.Check(check, Context())
    assert not answer.failures
    assert answer.inputs["metadata"]["name"].startswith("it-")
