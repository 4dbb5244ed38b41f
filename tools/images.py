"""Writes images/requirements.lock, the packages of the project's lock that the training image contains.

Run `python -m tools.images` after `make lock`; a test fails if it is stale. The Dockerfile and the built-in
cluster both install this file. SkyPilot's runtime has its own lock, images/skypilot.lock.
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
TARGET = ROOT / "images" / "requirements.lock"
EXTRAS = ("train", "hf", "speech", "vision", "tune", "mlflow", "wandb")
ADDITIONAL = ("lightning-fabric", "uv")
"""Packages outside these extras: for Lightning Fabric's example, and the installer."""
_SELF = "trainfleet (pyproject.toml)"


def required_by(block: str) -> set[str]:
    """The packages that require a block's package, from its `# via` comments."""
    comments = [
        line.strip().removeprefix("#").strip().removeprefix("via").strip()
        for line in block.splitlines()
        if line.strip().startswith("#")
    ]
    return {comment.partition("[")[0] for comment in comments if comment}


def declared(project: str) -> set[str]:
    """The packages that the project and the image's extras declare."""
    table = tomllib.loads(project)["project"]
    requirements, todo, seen = list(table["dependencies"]), list(EXTRAS), set()
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
    return (names - {"trainfleet"}) | set(ADDITIONAL)


def closure(found: dict[str, str], roots: Iterable[str]) -> set[str]:
    """The roots and everything that they require."""
    kept = set(roots) & found.keys()
    while more := {name for name, block in found.items() if name not in kept and required_by(block) & kept}:
        kept |= more
    return kept


def render_lock(lock: str, project: str) -> str:
    """The text of images/requirements.lock."""
    found = blocks(lock)
    kept = closure(found, declared(project))
    return "# Part of ../requirements.lock, written by `python -m tools.images`.\n" + "".join(
        found[name] for name in sorted(kept)
    )


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m tools.images", description=(__doc__ or "").partition("\n\n")[0]
    ).parse_args()
    write_whole(
        TARGET, render_lock((ROOT / "requirements.lock").read_text(), (ROOT / "pyproject.toml").read_text())
    )
    sys.stdout.write(f"{TARGET.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
