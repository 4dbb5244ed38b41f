"""Contracts of the six cloud stacks, written by a rehearsal, with the labels and taints of the nodes of their
pools.

    python -m tests.training.launch.saved_platforms

applies every stack on the simulated clouds and writes the contracts. A deep test compares them with the
stacks.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from trainfleet.infra.outputs.contract import PlatformOutputs, read_outputs

FOLDER = Path(__file__).with_name("contracts")
CLOUDS = ("aws", "gcp", "azure")
STACKS = tuple(f"{cloud}-{kind}" for kind in ("dev", "prod") for cloud in CLOUDS)
PROD = tuple(f"{cloud}-prod" for cloud in CLOUDS)
EFFECTS = {"NO_SCHEDULE": "NoSchedule"}
"""EKS and GKE have their own spelling of a taint's effect."""
GKE_NAMES = {
    "L4": "nvidia-l4",
    "A100-80GB": "nvidia-a100-80gb",
    "H100": "nvidia-h100-80gb",
    "H200": "nvidia-h200-141gb",
}
"""The label cloud.google.com/gke-accelerator that GKE sets on a node
(cloud.google.com/kubernetes-engine/docs/how-to/gpus).
"""


@cache
def saved(stack: str) -> dict[str, Any]:
    """`platform` and `nodes` of a stack."""
    return dict(json.loads((FOLDER / f"{stack}.json").read_text(encoding="utf-8")))


def outputs(stack: str, **changed: Any) -> PlatformOutputs:
    """The outputs of a stack, with changes."""
    return read_outputs(saved(stack)["platform"] | changed)


def platforms(*stacks: str) -> list[tuple[str, PlatformOutputs]]:
    return [(stack, outputs(stack)) for stack in stacks or PROD]


def nodes(stack: str, *, gpus: bool = True) -> list[dict[str, Any]]:
    """One node of each pool as the cluster lists it, and one without GPUs; only the latter if the pools are
    scaled to zero.
    """
    found = [_node("system", {}, [], {"cpu": "8", "memory": "32Gi"})]
    for pool in outputs(stack).pools if gpus else ():
        output = saved(stack)["nodes"][pool.name]
        labels = dict(output["labels"])
        if stack.startswith("gcp"):
            labels |= {
                "cloud.google.com/gke-accelerator": GKE_NAMES[pool.accelerator],
                "node.kubernetes.io/instance-type": pool.instance_type,
            }
        capacity = {"cpu": "192", "memory": "2000Gi", "nvidia.com/gpu": str(pool.per_node)}
        if pool.rdma_resource:
            capacity[pool.rdma_resource] = str(pool.rdma_nics)
        found.append(_node(pool.name, labels, output["taints"], capacity))
    return found


def _node(
    name: str, labels: dict[str, str], taints: list[list[str]], capacity: dict[str, str]
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "taints": [
                {"key": key, "effect": EFFECTS.get(effect, effect), "value": "present"}
                for key, effect in taints
            ]
        },
        "status": {
            "allocatable": capacity,
            "capacity": capacity,
            "addresses": [],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def made(stack: str) -> dict[str, Any]:
    """The outputs that the stack has now."""
    from tests.infra.test_contract_clouds import built

    found = built(stack, "")
    at = {
        name: {"labels": labels, "taints": [list(taint) for taint in taints]}
        for name, (labels, taints) in sorted(found.nodes.items())
    }
    return {"platform": found.outputs.model_dump(), "nodes": at}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in sys.argv[1:] or STACKS:
        (FOLDER / f"{each}.json").write_text(json.dumps(made(each), indent=1) + "\n", encoding="utf-8")
