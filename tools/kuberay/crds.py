"""Writes infra/kubernetes/crds/<version>/*.json.gz from the pinned Go module of KubeRay: `python -m tools.kuberay.crds`.

Run by a maintainer after the pin in go.mod was raised; the result is committed. go.sum holds the module's checksum, so
that the same definitions come out everywhere. The order of keys and the gzip header are fixed, so that a second run changes nothing.
"""

from __future__ import annotations

import gzip
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
HERE = Path(__file__).parent
TARGET = HERE.parent.parent / "infra" / "kubernetes" / "crds"


def module_folder() -> tuple[str, Path]:
    """The pinned version (without `v`) and the folder Go unpacked it to.

    Raises:
        MissingToolError: Go is not on the path.
        TrainfleetError: the module could not be fetched, or its checksum differs from go.sum.
    """
    go = shutil.which("go")
    if go is None:
        raise MissingToolError("cannot fetch KubeRay's definitions", [Problem("go", "not on the path", "install Go 1.24 or newer")])
    done = subprocess.run([go, "mod", "download", "-json", MODULE], cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TrainfleetError("cannot fetch KubeRay's definitions", [Problem(MODULE, done.stderr.strip() or done.stdout.strip())])
    found = json.loads(done.stdout)
    return found["Version"].removeprefix("v"), Path(found["Dir"])


def without_descriptions(node: Any) -> Any:
    """The schema without its prose: validation is the same, previews and state carry less."""
    if isinstance(node, dict):
        return {key: without_descriptions(value) for key, value in node.items() if not (key == "description" and isinstance(value, str))}
    return [without_descriptions(item) for item in node] if isinstance(node, list) else node


def packed(definition: dict[str, Any]) -> bytes:
    """One definition as gzip'd JSON, the same bytes for the same definition."""
    text = json.dumps(without_descriptions(definition), sort_keys=True, separators=(",", ":"))
    return gzip.compress(text.encode(), 9, mtime=0)


def main() -> None:
    version, folder = module_folder()
    for path in sorted((folder / "config" / "crd" / "bases").glob("*.yaml")):
        definition = yaml.safe_load(path.read_text())
        target = TARGET / version / f"{definition['metadata']['name']}.json.gz"
        write_whole(target, packed(definition))
        sys.stdout.write(f"{target.relative_to(TARGET.parent.parent.parent)}\n")


if __name__ == "__main__":
    main()
