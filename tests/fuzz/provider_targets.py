"""The messages that the engine sends to a simulated provider: a program can put any value into them.

One input is the life of one resource: Check, Diff, Create, Read, Update and Delete. A resource that Check
rejects ends there, as in the engine.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NoReturn

from hypothesis import strategies as st

from tests.fuzz import hostile
from tests.fuzz.record import RESOURCES
from tests.fuzz.target import Target

URN = "urn:pulumi:dev::project::{}::it"
FUNCTIONS = {
    "aws:index/getAvailabilityZones:getAvailabilityZones": {"state": "available"},
    "aws:index/getRegion:getRegion": {},
    "aws:index/getCallerIdentity:getCallerIdentity": {},
    "aws:ec2/getVpc:getVpc": {"id": "vpc-1", "filters": [{"name": "tag:team", "values": ["ml"]}]},
    "aws:ec2/getSubnets:getSubnets": {"filters": [{"name": "vpc-id", "values": ["vpc-1"]}]},
    "aws:ec2/getAmi:getAmi": {"mostRecent": True, "owners": ["amazon"], "nameRegex": "^al2023"},
    "aws:ssm/getParameter:getParameter": {"name": "/aws/service/eks", "withDecryption": False},
    "aws:iam/getPolicyDocument:getPolicyDocument": {
        "statements": [
            {
                "actions": ["sts:AssumeRole"],
                "resources": ["*"],
                "principals": [{"type": "Service", "identifiers": ["eks.amazonaws.com"]}],
                "conditions": [{"test": "StringEquals", "variable": "aws:x", "values": ["y"]}],
            }
        ]
    },
    "aws:eks/getCluster:getCluster": {"name": "prod"},
    "gcp:organizations/getClientConfig:getClientConfig": {},
    "gcp:organizations/getProject:getProject": {"projectId": "project-1"},
    "gcp:compute/getZones:getZones": {"region": "us-central1", "status": "UP"},
    "gcp:container/getEngineVersions:getEngineVersions": {
        "location": "us-central1",
        "versionPrefix": "1.33.",
    },
    "azure-native:authorization:getClientConfig": {},
    "azure-native:containerservice:listManagedClusterUserCredentials": {
        "resourceGroupName": "prod",
        "resourceName": "prod",
    },
    "azure-native:storage:listStorageAccountKeys": {"resourceGroupName": "prod", "accountName": "prod"},
    "kubernetes:helm:template": {"jsonOpts": "{}"},
    "kubernetes:yaml:decode": {"text": "kind: Pod\nmetadata: {name: x}\n", "defaultNamespace": "x"},
}
SETTINGS = {
    "aws": {"region": "us-east-2", "defaultTags": {"tags": {"team": "ml"}}, "allowedAccountIds": ["1"]},
    "gcp": {"project": "project-1", "region": "us-central1", "zone": "us-central1-a"},
    "azure-native": {"subscriptionId": "04da6b54", "location": "eastus2"},
    "kubernetes": {
        "kubeconfig": json.dumps(
            {
                "clusters": [{"name": "a", "cluster": {"server": "https://a"}}],
                "contexts": [{"name": "a", "context": {"cluster": "a"}}],
                "current-context": "a",
            }
        ),
        "namespace": "x",
        "clusterIdentifier": "a",
    },
}
DEFINITION = {
    "type": "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition",
    "inputs": {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gpus.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"kind": "Gpu", "plural": "gpus", "singular": "gpu"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "required": ["spec"],
                            "properties": {
                                "spec": {
                                    "type": "object",
                                    "properties": {
                                        "count": {"type": "integer", "minimum": 1, "maximum": 8},
                                        "names": {
                                            "type": "array",
                                            "items": {"type": "string", "pattern": "^a+$"},
                                        },
                                        "labels": {
                                            "type": "object",
                                            "additionalProperties": {"type": "string"},
                                        },
                                    },
                                    "x-kubernetes-validations": [
                                        {"rule": "self.count < 9", "message": "many"}
                                    ],
                                }
                            },
                        }
                    },
                }
            ],
        },
    },
}
GPU = {
    "apiVersion": "example.com/v1",
    "kind": "Gpu",
    "metadata": {"name": "a"},
    "spec": {"count": 2, "names": ["aa"], "labels": {"x": "y"}},
}


class RejectedMessage(Exception):  # noqa: N818 - an answer of the provider
    """Raised for what the provider answers instead of a result: failures of Check, or a status."""


class Context:
    """A call's context: `abort` ends the call, as that of gRPC does."""

    def peer(self) -> str:
        return "engine"

    def set_trailing_metadata(self, _: Any) -> None:
        return

    def abort(self, code: Any, details: str) -> NoReturn:
        raise RejectedMessage(f"{code}: {details}" if details.strip() else "")


@functools.cache
def resources() -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
    """The recorded resources of clouds, and Kubernetes objects."""
    rows = [json.loads(line) for line in RESOURCES.read_text(encoding="utf-8").splitlines()]
    rows.append(DEFINITION)
    objects = tuple(row for row in rows if row["type"].startswith("kubernetes:"))
    return tuple(row for row in rows if row not in objects), objects


def _lives(rows: tuple[dict[str, Any], ...]) -> st.SearchStrategy[Any]:
    """A type, the inputs it had, and those that it gets."""

    def life(row: dict[str, Any]) -> st.SearchStrategy[Any]:
        changed = hostile.mutated((row["inputs"],)) if row["inputs"] else hostile.values()
        # What existed has passed Check, which rejects numbers that are not finite.
        before = hostile.mutated((row["inputs"],), finite=True) if row["inputs"] else st.just({})
        return st.tuples(st.just(row["type"]), st.one_of(st.just(row["inputs"]), before), changed)

    return st.sampled_from(rows).flatmap(life)


def _struct(document: Any) -> Any:
    """Inputs as the engine sends them."""
    from google.protobuf import struct_pb2

    struct = struct_pb2.Struct()
    for name, value in document.items() if isinstance(document, dict) else ():
        struct[_text(str(name))] = _sent(value)
    return struct


def _sent(value: Any) -> Any:
    from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, secret

    if isinstance(value, dict):
        return {_text(str(name)): _sent(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_sent(each) for each in value]
    if isinstance(value, str):
        return {"[unknown]": UNKNOWN, "[secret]": secret("x")}.get(value) or _text(value)
    return value


def _text(text: str) -> str:
    """Protobuf has no half surrogate pairs."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _provider(package: str) -> Any:
    from trainfleet.rehearsal.simulation.provider import SimulatedProvider
    from trainfleet.rehearsal.simulation.replacement import table
    from trainfleet.rehearsal.simulation.schema import packages
    from trainfleet.rehearsal.simulation.state import Cloud

    provider = SimulatedProvider(packages()[package], Cloud(), table())
    provider.model = type(provider.model)()  # it keeps the definitions of custom resources
    return provider


def _over_the_wire(request: Any) -> Any:
    """The request as the server gets it.

    Raises:
        google.protobuf.message.DecodeError: gRPC rejects it, because it is nested too deep.
    """
    return type(request).FromString(request.SerializeToString())


def _raise_failures(answer: Any) -> None:
    reasons = [each.reason for each in answer.failures]
    if reasons:
        raise RejectedMessage("\n".join(reasons) if all(reasons) else "")


def _life(life: tuple[str, Any, Any], _folder: Path) -> object:
    from pulumi.runtime.proto import provider_pb2 as pb

    token, old, new = life
    provider, context, urn = _provider(token.split(":")[0]), Context(), URN.format(token)
    settings = _struct(SETTINGS[token.split(":")[0]])
    provider.Configure(_over_the_wire(pb.ConfigureRequest(args=settings)), context)
    before = _struct(old)
    check = pb.CheckRequest(urn=urn, type=token, olds=before, news=_struct(new))
    answer = provider.Check(_over_the_wire(check), context)
    _raise_failures(answer)
    checked = answer.inputs
    provider.Diff(
        _over_the_wire(pb.DiffRequest(urn=urn, type=token, old_inputs=before, news=checked)), context
    )
    provider.Create(
        _over_the_wire(pb.CreateRequest(urn=urn, type=token, properties=checked, preview=True)), context
    )
    made = provider.Create(_over_the_wire(pb.CreateRequest(urn=urn, type=token, properties=checked)), context)
    place = {"urn": urn, "type": token, "id": made.id}
    provider.Read(_over_the_wire(pb.ReadRequest(**place)), context)
    if token == DEFINITION["type"]:
        kind = pb.CheckRequest(urn=urn, type="kubernetes:example.com/v1:Gpu", news=_struct(GPU))
        provider.Check(_over_the_wire(kind), context)
    update = pb.UpdateRequest(**place, olds=made.properties, old_inputs=before, news=checked)
    provider.Update(_over_the_wire(update), context)
    return provider.Delete(_over_the_wire(pb.DeleteRequest(**place, properties=made.properties)), context)


def _invoke(question: tuple[str, Any], _folder: Path) -> object:
    from pulumi.runtime.proto import provider_pb2 as pb

    token, given = question
    request = pb.InvokeRequest(tok=token, args=_struct(given))
    return _provider(token.split(":")[0]).Invoke(_over_the_wire(request), Context())


def _configure(change: tuple[str, Any, Any], _folder: Path) -> object:
    from pulumi.runtime.proto import provider_pb2 as pb

    package, old, new = change
    provider, context = _provider(package), Context()
    checked = provider.CheckConfig(
        _over_the_wire(pb.CheckRequest(news=_struct(new), olds=_struct(old))), context
    )
    _raise_failures(checked)
    provider.DiffConfig(_over_the_wire(pb.DiffRequest(old_inputs=_struct(old), news=_struct(new))), context)
    provider.Configure(_over_the_wire(pb.ConfigureRequest(args=_struct(new))), context)
    row = next(each for group in resources() for each in group if each["type"].startswith(f"{package}:"))
    urn = URN.format(row["type"])
    check = pb.CheckRequest(urn=urn, type=row["type"], news=_struct(row["inputs"]))
    inputs = provider.Check(check, context).inputs
    return provider.Create(pb.CreateRequest(urn=urn, type=row["type"], properties=inputs), context)


def _rejects() -> tuple[type[Exception], ...]:
    from google.protobuf.message import DecodeError

    return RejectedMessage, DecodeError


def _questions() -> st.SearchStrategy[Any]:
    return st.sampled_from(sorted(FUNCTIONS)).flatmap(
        lambda token: st.tuples(
            st.just(token), hostile.mutated((FUNCTIONS[token],)) if FUNCTIONS[token] else hostile.values()
        )
    )


def _settings() -> st.SearchStrategy[Any]:
    return st.sampled_from(sorted(SETTINGS)).flatmap(
        lambda package: st.tuples(
            st.just(package), st.just(SETTINGS[package]), hostile.mutated((SETTINGS[package],))
        )
    )


TARGETS: dict[str, Target] = {
    "provider": Target(
        "resources of clouds, sent to a simulated provider", lambda: _lives(resources()[0]), _life, _rejects()
    ),
    "manifests": Target(
        "Kubernetes objects and definitions, sent to a simulated provider",
        lambda: _lives(resources()[1]),
        _life,
        _rejects(),
        examples=(
            (DEFINITION["type"], {}, {**DEFINITION["inputs"], "spec": {"versions": 3}}),
            ("kubernetes:core/v1:ConfigMap", {"metadata": [{}]}, {"data": {"a": "b"}}),
        ),
    ),
    "functions": Target(
        "functions of a simulated provider",
        _questions,
        _invoke,
        _rejects(),
        examples=(
            ("aws:iam/getPolicyDocument:getPolicyDocument", {"statements": [None]}),
            ("aws:iam/getPolicyDocument:getPolicyDocument", {"statements": [{"conditions": [None]}]}),
            ("aws:iam/getPolicyDocument:getPolicyDocument", {"statements": [{"principals": [None, {}]}]}),
            ("aws:ssm/getParameter:getParameter", {"name": []}),
            ("aws:ec2/getSubnets:getSubnets", {"filters": [None]}),
        ),
    ),
    "provider-settings": Target("settings of a simulated provider", _settings, _configure, _rejects()),
}
