"""Writes infra/kubernetes/crds/<version>/*.json from the pinned Go module of KubeRay.

Run `python -m tools.kuberay.crds` after raising the pin in go.mod, and commit the result. The output is
deterministic.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from trainfleet.errors import MissingToolError, Problem, TrainfleetError
from trainfleet.files import write_whole

MODULE = "github.com/ray-project/kuberay/ray-operator"
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
HERE = Path(__file__).parent
TARGET = HERE.parent.parent / "infra" / "kubernetes" / "crds"


def module_folder() -> tuple[str, Path]:
    """The pinned version (without `v`) and the folder of its sources.

    Raises:
        MissingToolError: Go is not on the path.
        TrainfleetError: the download failed, or the checksum differs from go.sum.
    """
    go = shutil.which("go")
    if go is None:
        raise MissingToolError(
            "cannot fetch KubeRay's definitions",
            [Problem("go", "not on the path", "install Go 1.24 or newer")],
        )
    done = subprocess.run(
        [go, "mod", "download", "-json", MODULE], cwd=HERE, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise TrainfleetError(
            "cannot fetch KubeRay's definitions",
            [Problem(MODULE, done.stderr.strip() or done.stdout.strip())],
        )
    found = json.loads(done.stdout)
    return found["Version"].removeprefix("v"), Path(found["Dir"])


def defaults(node: dict[str, Any]) -> dict[str, Any] | None:
    """The schema with nothing but its defaults; None if it has none. An empty name is the same as none."""
    found = {"default": node["default"]} if "default" in node else {}
    properties = {name: defaults(each) for name, each in node.get("properties", {}).items() if name != "name"}
    if kept := {name: each for name, each in properties.items() if each is not None}:
        found["properties"] = kept
    if "items" in node and (items := defaults(node["items"])) is not None:
        found["items"] = items
    if not found:
        return None
    return {**(OPEN if node["type"] == "object" else {"type": node["type"]}), **found}


def slim(node: Any) -> Any:
    """The schema without descriptions and without the copies of Kubernetes' pod specification.

    A tenth remains. The four complete definitions have 1.3 MB and slow each preview (11 s instead of 3 s,
    measured on two cores). The API server validates a pod specification when the operator creates the pod;
    every field of Ray's own is still validated. The defaults of containers remain: Kueue compares them with
    those of its Workload, and never starts a RayJob that differs.
    """
    if isinstance(node, list):
        return [slim(item) for item in node]
    if not isinstance(node, dict):
        return node
    properties = node.get("properties")
    if isinstance(properties, dict) and {"containers", "initContainers"} <= properties.keys():
        pods = {name: properties[name] for name in ("containers", "initContainers")}
        return defaults({"type": "object", "properties": pods}) or dict(OPEN)
    return {
        key: slim(value)
        for key, value in node.items()
        if not (key == "description" and isinstance(value, str))
    }


def render(definition: dict[str, Any]) -> str:
    """One definition as JSON."""
    return json.dumps(slim(definition), sort_keys=True, indent=1) + "\n"


def main() -> None:
    """Write the definitions of the pinned version."""
    version, folder = module_folder()
    for path in sorted((folder / "config" / "crd" / "bases").glob("*.yaml")):
        definition = yaml.safe_load(path.read_text())
        target = TARGET / version / f"{definition['metadata']['name']}.json"
        write_whole(target, render(definition))
        sys.stdout.write(f"{target.relative_to(TARGET.parent.parent.parent)}\n")


if __name__ == "__main__":
    main()
