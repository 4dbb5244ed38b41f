"""A platform for the cluster layer without a cloud, and the layer planned, applied and destroyed once on the
real engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainfleet.rehearsal.engine.engine_cli import Outcome
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session

PROGRAM = """
import dataclasses

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.spec.load import parse_spec
from trainfleet.infra.kubernetes import install
from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.platform import LogStore, Platform, Pool, ServiceIdentity, SharedVolume
from trainfleet.infra.spec.node_groups import node_groups

config = pulumi.Config("trainfleet")
spec = parse_spec(config.require_object("platform"), "test")
provider = k8s.Provider("cluster", kubeconfig="{}", cluster_identifier="one")
nodes = k8s.core.v1.ConfigMap("nodes", metadata={"name": "nodes"}, opts=pulumi.ResourceOptions(provider=provider))


def pool(pool_spec):
    machine = machine_for_pool(spec.cloud, pool_spec)
    efa = "vpc.amazonaws.com/efa" if pool_spec.interconnect == "best" and machine.rdma == "efa" else ""
    return Pool(pool_spec, machine, {}, (), nodes, efa)


parameters = {"type": "gp3", "encrypted": "true"}
platform = Platform(
    cloud=spec.cloud, kubernetes=provider, cluster=nodes, cluster_name=nodes.metadata.name, kube_context="c", kubeconfig="{}", bucket_url="",
    registry="", pools=tuple(map(pool, node_groups(spec))),
    identities={
        "training": ServiceIdentity("training", "trainer", "role", {"example.com/role": "role"}, {"identity": "on"}),
        "autoscaler": ServiceIdentity("kube-system", "cluster-autoscaler", "role"),
        "secrets": ServiceIdentity("external-secrets", "external-secrets", "role"),
        "logs": ServiceIdentity("logging", "log-shipper", "role"),
    } if spec.cloud == "aws" else {},
    storage_class_provisioner="ebs.csi.aws.com" if spec.cloud == "aws" else "", storage_class_parameters=parameters,
    shared_filesystem=SharedVolume("fsx.csi.aws.com", nodes.id, {"mountname": "m"}, 1200) if spec.storage.shared_filesystem else None,
    autoscaler="generic" if spec.cloud == "aws" else "", api_cidrs=tuple(config.get_object("cidrs") or ()), system_nodes=(nodes,),
    secret_store={"aws": {"service": "SecretsManager", "region": spec.region}} if spec.secrets.names else {},
    log_store=LogStore("cloudwatch_logs", {"log_group_name": nodes.metadata.name}, "logs") if spec.cloud == "aws" else None,
    provides=frozenset({"node-problems"}) if spec.cloud == "aws" else frozenset(),
    metadata_endpoints=(("169.254.170.23/32", 80),) if spec.cloud == "aws" else (),
)
install(platform, spec)
"""


@dataclass
class Layer:
    """The layer as the engine saw it."""

    inputs: dict[str, dict[str, Any]]
    """By logical name."""
    preview: Outcome
    applied: Outcome
    again: Outcome
    destroyed: Outcome
    removed: list[str]
    """Logical names in the order in which they were deleted."""
    left: list[str]

    def of(self, token: str) -> dict[str, dict[str, Any]]:
        """Inputs of every resource of a type, by logical name."""
        tokens = {step.name: step.token for step in self.preview.steps}
        return {name: inputs for name, inputs in self.inputs.items() if tokens[name] == f"kubernetes:{token}"}


def install(folder: Path, settings: dict[str, Any], *, whole: bool = False) -> Layer:
    """Preview the layer for a spec; with `whole` apply it, preview again and destroy it."""
    (folder / "__main__.py").write_text(PROGRAM)
    (folder / "Pulumi.yaml").write_text("name: layer\nruntime: python\n")
    (folder / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": settings}))
    with rehearsal_session(read_project(folder, "dev"), find_engine(), RehearsalOptions()) as rehearsal:
        run, none = rehearsal.runner.run, Outcome("")
        preview = run("preview")
        assert preview.ok, preview.output
        steps = [step for step in preview.steps if step.token.startswith("kubernetes:")]
        layer = Layer(
            {step.name: (step.new or {}).get("inputs") or {} for step in steps},
            preview,
            none,
            none,
            none,
            [],
            [],
        )
        if whole:
            layer.applied = run("up", "--yes", "--skip-preview")
            layer.again = run("preview")
            layer.destroyed = run("destroy", "--yes", "--skip-preview")
            layer.removed = [
                done.urn.rsplit("::", 1)[-1] for done in rehearsal.cloud.operations if done.verb == "delete"
            ]
            layer.left = [record.urn for record in rehearsal.cloud.records.values()]
        return layer


def spec(root: Path, stack: str, **changes: Any) -> dict[str, Any]:
    """A stack's spec with parts replaced."""
    document = yaml.safe_load((root / "stacks" / f"Pulumi.{stack}.yaml").read_text())["config"][
        "trainfleet:platform"
    ]
    return {**document, **changes}


@pytest.fixture
def plan(root: Path, tmp_path: Path) -> Callable[..., Layer]:
    """Plan the layer of a stack's spec: `plan("aws-dev")`, with optional settings."""
    return lambda stack, **settings: install(tmp_path, {"trainfleet:platform": spec(root, stack), **settings})


@pytest.fixture(scope="session")
def aws(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Layer:
    """The layer of aws-prod's spec (as `dev`, so that nothing is protected), through its whole life."""
    return install(
        tmp_path_factory.mktemp("aws"),
        {"trainfleet:platform": spec(root, "aws-prod", environment="dev")},
        whole=True,
    )
