"""One contract for every cloud: what launchers read from any stack's outputs schedules pods on its nodes,
without asking which cloud it is.

Each stack is applied once on the real engine over the simulated clouds. `place` does what a launcher does,
from outputs alone; the nodes it
is held against are read from what the cloud was asked for, and that table is the only thing here that knows
clouds apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trainfleet.infra.clouds import Cloud
from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput, read_outputs
from trainfleet.infra.spec.stack_file import stack_names
from trainfleet.rehearsal.engine.engine_cli import resources_of
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.project_lookup import stack_settings
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session

# The simulated provider reads every class of the SDK, the old ones too, and those warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROOT = Path(__file__).resolve().parents[2]
HYPERPOD = (
    "gpu_pools=[{name: h100, accelerator: H100, per_node: 8, min_nodes: 2, max_nodes: 2, kind: hyperpod,"
    " interconnect: best, compact: true}]"
)
WORKSTATION = "gpu_pools=[{name: l4, accelerator: L4, labels: {gpu: l4}}]"
CHANGED = {"aws-dev": HYPERPOD, "local": WORKSTATION}
"""Stacks with another setting than their own; these are tried at every change, the others in test-deep."""
SUBJECTS = [
    pytest.param(stack, CHANGED.get(stack, ""), id=stack, marks=() if stack in CHANGED else pytest.mark.deep)
    for stack in stack_names(ROOT)
]

Nodes = tuple[dict[str, str], list[tuple[str, str]]]
"""Labels, and taints as (key, effect)."""


@dataclass(frozen=True)
class Built:
    outputs: PlatformOutputs
    nodes: dict[str, Nodes]
    """By pool."""


@cache
def built(stack: str, setting: str) -> Built:
    settings = stack_settings(stack, ROOT, [setting]) if setting else None
    with rehearsal_session(
        read_project(ROOT, stack), find_engine(), RehearsalOptions(), settings=settings
    ) as rehearsal:
        applied = rehearsal.runner.run("up", "--yes", "--skip-preview")
        assert applied.ok, applied.output[-4000:]
        shown = rehearsal.runner.run(
            "stack", "output", "--json", "--stack", rehearsal.runner.sandbox.stack, events=False
        )
        outputs = read_outputs(json.loads(shown.output))
        asked = resources_of(rehearsal.runner.sandbox.state)
    nodes: dict[str, Nodes] = {}
    for resource in asked:
        for labels, taints in NODES.get(resource["type"], lambda _: [])(resource.get("inputs", {})):
            nodes[labels.get("trainfleet.io/pool", "")] = (labels, taints)
    for pool in outputs.pools:
        # An existing cluster has the labels that the spec says, and whatever taints its owner
        # gave it.
        nodes.setdefault(pool.name, (pool.node_selector, []))
    return Built(outputs, nodes)


def node_groups(inputs: dict[str, Any]) -> list[Nodes]:
    return [(inputs["labels"], [(taint["key"], taint["effect"]) for taint in inputs.get("taints", [])])]


def instance_groups(inputs: dict[str, Any]) -> list[Nodes]:
    groups = [group["KubernetesConfig"] for group in json.loads(inputs["desiredState"])["InstanceGroups"]]
    healthy = {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}
    return [
        ({**group["Labels"], **healthy}, [(taint["Key"], taint["Effect"]) for taint in group["Taints"]])
        for group in groups
    ]


def node_pools(inputs: dict[str, Any]) -> list[Nodes]:
    node = inputs["nodeConfig"]
    return [(node.get("labels", {}), [(taint["key"], taint["effect"]) for taint in node.get("taints", [])])]


def agent_pools(inputs: dict[str, Any]) -> list[Nodes]:
    taints = [re.fullmatch(r"([^=:]+)(?:=[^:]*)?:(\w+)", taint) for taint in inputs.get("nodeTaints", [])]
    return [(inputs.get("nodeLabels", {}), [(taint[1], taint[2]) for taint in taints if taint])]


NODES: dict[str, Callable[[dict[str, Any]], list[Nodes]]] = {
    "aws:eks/nodeGroup:NodeGroup": node_groups,
    "aws:cloudcontrol/resource:Resource": instance_groups,
    "gcp:container/nodePool:NodePool": node_pools,
    "azure-native:containerservice:AgentPool": agent_pools,
}


def place(outputs: PlatformOutputs, pool: PoolOutput) -> dict[str, Any]:
    """A training pod for a pool, as a launcher writes it: every value is read, and nothing depends on which
    cloud it came from.
    """
    resources = {"nvidia.com/gpu": str(pool.per_node)}
    if pool.rdma_resource:
        resources[pool.rdma_resource] = str(pool.rdma_nics)
    metadata: dict[str, Any] = {
        "namespace": outputs.namespace,
        "labels": dict(outputs.pod_labels),
        "annotations": dict(pool.pod_annotations),
    }
    if outputs.queue:
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = outputs.queue
    spec = {
        "serviceAccountName": outputs.service_account,
        "nodeSelector": pool.node_selector,
        "tolerations": pool.tolerations,
        "priorityClassName": outputs.priority_classes[0] if outputs.priority_classes else "",
        "containers": [{"image": outputs.image, "env": pool.environment, "resources": {"limits": resources}}],
    }
    return {"metadata": metadata, "spec": spec}


def tolerated(taint: tuple[str, str], tolerations: list[dict[str, str]]) -> bool:
    def same(effect: str) -> str:
        return effect.replace("_", "").lower()

    key, effect = taint
    return any(
        each["key"] == key and same(each.get("effect", effect)) == same(effect) for each in tolerations
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("stack", "setting"), SUBJECTS)
def test_a_pod_written_from_outputs_alone_fits_the_nodes_of_its_pool_and_no_others(
    stack: str, setting: str
) -> None:
    found = built(stack, setting)
    for pool in found.outputs.pools:
        pod = place(found.outputs, pool)["spec"]
        labels, taints = found.nodes[pool.name]
        assert pod["nodeSelector"], "a pod that asks for no pool may land on any node"
        assert pod["nodeSelector"].items() <= labels.items(), pool.name
        assert [taint for taint in taints if not tolerated(taint, pod["tolerations"])] == [], pool.name
        others = {name: nodes for name, nodes in found.nodes.items() if name != pool.name}
        assert [name for name, (own, _) in others.items() if pod["nodeSelector"].items() <= own.items()] == []


@pytest.mark.parametrize(("stack", "setting"), SUBJECTS)
def test_what_a_launcher_needs_is_known_once_a_stack_is_applied(stack: str, setting: str) -> None:
    outputs = built(stack, setting).outputs
    assert outputs.bucket_url.startswith(("s3://", "gs://", "az://", "file://"))
    assert outputs.namespace
    assert outputs.service_account
    assert outputs.image
    assert outputs.priority_classes == ["trainfleet-high", "trainfleet-normal", "trainfleet-low"]
    assert (outputs.launcher_account, outputs.launcher_token_secret) == ("launcher", "")
    assert (outputs.ray_certificates is not None) == outputs.ray_tls
    assert all(
        isinstance(value, str)
        for pool in outputs.pools
        for value in {**pool.environment, **pool.pod_annotations}.values()
    )


@pytest.mark.parametrize(("stack", "setting"), SUBJECTS)
def test_a_pool_with_a_fabric_says_how_a_pod_uses_it(stack: str, setting: str) -> None:
    for pool in built(stack, setting).outputs.pools:
        if pool.rdma == "none":
            assert (pool.rdma_resource, pool.rdma_nics, pool.environment, pool.pod_annotations) == (
                "",
                0,
                {},
                {},
            )
        else:
            assert pool.rdma_nics > 0
            assert pool.rdma_resource or pool.pod_annotations
            # over TCP a daemon in every pod provides NCCL's settings: SkyPilot adds it
            assert pool.environment or pool.rdma.startswith("gpudirect-tcp")


def test_no_launcher_and_no_part_of_the_layer_asks_which_cloud_it_is_on() -> None:
    """`infra/kubernetes/hyperpod.py` lists machines of the catalogue, which name their cloud; it is installed
    by AWS's own build. `ray up`
    has a form of its own for each cloud: that is what `training/launch/ray_up` writes."""
    asks = re.compile(r"\.cloud\b|Cloud\.[A-Z]+|cloud\s*[=!]=|cloud\s+(is|in|not)\b", re.IGNORECASE)
    files = [*(ROOT / "training" / "launch").rglob("*.py"), *(ROOT / "infra" / "kubernetes").rglob("*.py")]
    found = {}
    for file in files:
        code = re.sub(r'""".*?"""|#[^\n]*|"[^"\n]*"', "", file.read_text(), flags=re.DOTALL)
        lines = [line.strip() for line in code.splitlines() if asks.search(line)]
        if lines and file.name != "hyperpod.py" and file.parent.name != "ray_up":
            found[file.name] = lines
    assert found == {"platform_outputs.py": ['"cloud": outputs.cloud,'.replace('"cloud"', "")]}, (
        "training/launch/platform_outputs.py notes the cloud in run.json"
    )


def test_every_cloud_has_a_stack_here() -> None:
    assert {stack.partition("-")[0] for stack in stack_names(ROOT)} == {cloud.value for cloud in Cloud}
