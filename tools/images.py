"""Writes images/requirements.lock, the packages of the project's lock that the training image contains, and
images/ray_up.lock, those that Ray's autoscaler needs on the head of `--on ray-up` in addition.

Run `python -m tools.images` after `make lock`; a test fails if one is stale. The Dockerfile and the built-in
cluster both install the first. The second is only in the Dockerfile: the cluster's pods create no machines.
SkyPilot's runtime has its own lock, images/skypilot.lock.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from trainfleet.files import write_whole
from trainfleet.local_cluster.lock_file import blocks

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "images"
EXTRAS = ("train", "hf", "speech", "vision", "float8", "tune", "mlflow", "wandb")
ADDITIONAL = ("lightning-fabric", "uv")
"""Packages outside these extras: for Lightning Fabric's example, and the installer."""
HEAD_EXTRAS = ("ray-up",)
_SELF = "trainfleet (pyproject.toml)"


def required_by(block: str) -> set[str]:
    """The packages that require a block's package, from its `# via` comments."""
    comments = [
        line.strip().removeprefix("#").strip().removeprefix("via").strip()
        for line in block.splitlines()
        if line.strip().startswith("#")
    ]
    return {comment.partition("[")[0] for comment in comments if comment}


def declared(project: str, extras: Iterable[str]) -> set[str]:
    """The packages that the project and some of its extras declare."""
    table = tomllib.loads(project)["project"]
    requirements, todo, seen = list(table["dependencies"]), list(extras), set()
    while todo:
        extra = todo.pop()
        if extra not in seen:
            seen.add(extra)
            requirements += table["optional-dependencies"][extra]
    for text in list(requirements):
        if inner := re.match(r"trainfleet\[([^\]]*)\]", text):
            requirements += [
                row for name in inner[1].split(",") for row in table["optional-dependencies"][name]
            ]
    names = {re.split(r"[\[<>=!~; ]", text, maxsplit=1)[0] for text in requirements}
    return names - {"trainfleet"}


def closure(found: dict[str, str], roots: Iterable[str]) -> set[str]:
    """The roots and everything that they require."""
    kept = set(roots) & found.keys()
    while more := {name for name, block in found.items() if name not in kept and required_by(block) & kept}:
        kept |= more
    return kept


def render_locks(lock: str, project: str) -> dict[str, str]:
    """The text of each lock by its name in images/."""
    found = blocks(lock)
    image = closure(found, declared(project, EXTRAS) | set(ADDITIONAL))
    head = closure(found, declared(project, HEAD_EXTRAS)) - image
    header = "# Part of ../requirements.lock, written by `python -m tools.images`.\n"
    return {
        file: header + "".join(found[name] for name in sorted(names))
        for file, names in (("requirements.lock", image), ("ray_up.lock", head))
    }


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m tools.images", description=(__doc__ or "").partition("\n\n")[0]
    ).parse_args()
    lock, project = (ROOT / "requirements.lock").read_text(), (ROOT / "pyproject.toml").read_text()
    for name, text in render_locks(lock, project).items():
        write_whole(IMAGES / name, text)
        sys.stdout.write(f"images/{name}\n")


if __name__ == "__main__":
    main()
