"""The layer planned in this process, without an engine: what a program registers, by logical name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
from pulumi.runtime import mocks

from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.kubernetes import install
from trainfleet.infra.platform import LogStore, Platform, Pool, ServiceIdentity, Subject
from trainfleet.infra.spec.load import parse_spec
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import PlatformSpec

H100 = {
    "name": "h100",
    "accelerator": "H100",
    "per_node": 8,
    "max_nodes": 4,
    "interconnect": "best",
    "compact": True,
}
L4 = {"name": "l4", "accelerator": "L4", "per_node": 4, "max_nodes": 16}
SPEC: dict[str, Any] = {
    "name": "lab",
    "cloud": "aws",
    "region": "us-east-2",
    "owner": "ml@example.com",
    "kubernetes": {"access": {"public_ranges": ["203.0.113.0/24"]}},
    "gpu_pools": [H100, L4],
    "queue": {"enabled": True},
    "secrets": {"provider": "cloud", "names": ["hf-token"]},
}
IDENTITIES = {
    "training": ServiceIdentity("training", "trainer", "role", {"example.com/role": "role"}),
    "autoscaler": ServiceIdentity("kube-system", "cluster-autoscaler", "role"),
    "secrets": ServiceIdentity("external-secrets", "external-secrets", "role"),
    "logs": ServiceIdentity("logging", "log-shipper", "role"),
}
STORE = {"aws": {"service": "SecretsManager", "region": "us-east-2"}}
LOGS = LogStore("cloudwatch_logs", {"region": "us-east-2", "log_group_name": "/lab/pods"}, "logs")


@dataclass
class Planned:
    """What was registered: type and inputs by logical name."""

    types: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        """Inputs of every resource whose type ends in `:<kind>`, by logical name."""
        return {name: self.inputs[name] for name, token in self.types.items() if token.endswith(f":{kind}")}

    def values(self, name: str) -> dict[str, Any]:
        """The values of a release."""
        found: dict[str, Any] = self.inputs[name]["values"]
        return found

    def custom(self, kind: str) -> dict[str, dict[str, Any]]:
        """Specs of custom resources of a kind, by their name in the cluster."""
        return {inputs["metadata"]["name"]: inputs for inputs in self.of(kind).values()}

    def strings(self) -> Iterator[str]:
        """Every text of every input."""
        todo: list[Any] = list(self.inputs.values())
        while todo:
            one = todo.pop()
            if isinstance(one, dict):
                todo += [*one.keys(), *one.values()]
            elif isinstance(one, list | tuple):
                todo += one
            elif isinstance(one, str):
                yield one


class _Recorder(mocks.Mocks):
    def __init__(self) -> None:
        self.planned = Planned()

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        if args.typ.startswith("kubernetes:"):
            self.planned.types[args.name], self.planned.inputs[args.name] = args.typ, args.inputs
        return f"{args.name}-id", args.inputs

    def call(self, args: mocks.MockCallArgs) -> dict[str, Any]:
        raise AssertionError(f"the layer asks a provider: {args.token}")


def spec(**changes: Any) -> PlatformSpec:
    """The spec of these tests with some top-level keys changed."""
    return parse_spec({**SPEC, **changes}, "test")


def pool(of: PlatformSpec, pool_spec: NodeGroup) -> Pool:
    """The pool as a cloud would hand it over: with its fabric's resource where it has EFA or InfiniBand."""
    machine = machine_for_pool(of.cloud, pool_spec)
    resource = (
        {"efa": "vpc.amazonaws.com/efa", "infiniband": "rdma/ib"}.get(machine.rdma, "")
        if pool_spec.interconnect == "best"
        else ""
    )
    return Pool(
        pool_spec,
        machine,
        {"trainfleet.io/pool": pool_spec.pool, **pool_spec.capacity_label},
        (),
        None,
        resource,
    )


def platform(of: PlatformSpec, provider: k8s.Provider, **changes: Any) -> Platform:
    """A platform whose cloud provides nothing and has everything to give."""
    whole = Platform(
        cloud=of.cloud,
        kubernetes=provider,
        cluster=None,
        cluster_name="lab",
        kube_context="lab",
        kubeconfig="{}",
        bucket_url="s3://lab",
        registry="",
        pools=tuple(pool(of, pool_spec) for pool_spec in node_groups(of)),
        identities=IDENTITIES,
        storage_class_provisioner="ebs.csi.aws.com",
        storage_class_parameters={"type": "gp3", "encrypted": "true"},
        shared_filesystem=None,
        autoscaler="generic",
        api_cidrs=(),
        secrets={"hf-token": "lab/hf-token"},
        secret_store=STORE,
        limits_critical_pods=of.cloud == "gcp",
        log_store=LOGS,
        launchers=(Subject("User", "ana@example.com"),),
        metadata_endpoints=(("169.254.170.23/32", 80),),
    )
    return replace(whole, **changes)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One loop for every plan: Pulumi keeps what it still waits for between them."""
    return asyncio.new_event_loop()


def plan(changes: dict[str, Any] | None = None, **platform_changes: Any) -> Planned:
    """Install the layer for a changed spec on a changed platform, and say what was registered."""
    of = spec(**(changes or {}))
    asyncio.set_event_loop(_loop())
    recorder = _Recorder()
    mocks.set_mocks(recorder, project="layer", stack="test")

    @pulumi.runtime.test
    def program() -> None:
        install(platform(of, k8s.Provider("cluster", kubeconfig="{}"), **platform_changes), of)

    program()
    return recorder.planned
