"""Gathers the first planned resource of each type that a rule is about, as the compliant resources of the table
of cases. The rules do not choose them: the stacks are expected to follow every rule, and test_rules.py checks it.

    trainfleet rehearse gcp-prod --until preview --resources gcp-prod.jsonl      (and the other stacks)
    python -m tests.policies.gather gcp-prod.jsonl aws-prod.jsonl …

GPU pools and system pools have the same type but follow different rules, so GPU pools are stored as
`<type>#gpu`. Unknown values stay "[unknown]".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from trainfleet.policies.catalogue import RULES
from trainfleet.policies.engine.rule import UNKNOWN, Resource, canonical
from trainfleet.policies.gpu import aks_gpu, eks_gpu, gke_gpu
from trainfleet.policies.resource_types import AKS_NODES, EKS_NODES, GKE_NODES, WORKLOADS

PLANNED = Path(__file__).with_name("planned.json")
GPU = {EKS_NODES: eks_gpu, GKE_NODES: gke_gpu, AKS_NODES: aks_gpu}


def clean(value: Any) -> Any:
    """Properties without the engine's own marks and without absent values."""
    if isinstance(value, dict):
        return {
            key: clean(each) for key, each in value.items() if not key.startswith("__") and each is not None
        }
    return [clean(each) for each in value] if isinstance(value, list) else value


def copy_props(value: Any) -> Any:
    """A copy that can be changed, with UNKNOWN where a preview does not know."""
    if isinstance(value, str) and value == "[unknown]":
        return UNKNOWN
    if isinstance(value, dict):
        return {key: copy_props(each) for key, each in value.items()}
    return [copy_props(each) for each in value] if isinstance(value, list) else value


def by_name(file: Path) -> list[dict[str, Any]]:
    """The resources of a file by name, because the engine registers them in any order."""
    return sorted(
        map(json.loads, file.read_text().splitlines()), key=lambda each: (each["name"], each["type"])
    )


def main(files: list[str]) -> None:
    """Write the first resource of each type, in the order of the files."""
    # Our own workloads are agents that may do what others may not, so they show nothing; workloads are
    # written by hand.
    covered = {kind for rule in RULES for kind in rule.resource_types()} - set(WORKLOADS)
    found: dict[str, dict[str, Any]] = {}
    for planned in (each for file in files for each in by_name(Path(file))):
        kind, props = canonical(planned["type"]), clean(planned["inputs"])
        resource = Resource(kind, planned["name"], copy_props(props))
        key = f"{kind}#gpu" if kind in GPU and GPU[kind](resource) else kind
        if kind in covered and key not in found and props:
            found[key] = {"name": resource.name, "props": props}
    PLANNED.write_text(json.dumps(dict(sorted(found.items())), indent=1, sort_keys=True) + "\n")
    print(f"{len(found)} types")  # noqa: T201 - a tool


if __name__ == "__main__":
    main(sys.argv[1:])
