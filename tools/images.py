"""Writes images/requirements.lock, the part of the project's lock that the training image holds: `python -m
tools.images`.

Run by a maintainer after `make lock`; a test says when it is due. Both images, the Dockerfile's and the one
that the built-in
cluster makes, install this file, so they cannot differ. SkyPilot's own runtime has a lock of its own beside
it.
"""

from __future__ import annotations

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
BESIDES = ("lightning-fabric", "uv")
"""Packages of no extra above: what Lightning Fabric's example needs; the installer."""
_SELF = "trainfleet (pyproject.toml)"


def asked_by(block: str) -> set[str]:
    """The packages that a block says it is there for."""
    comments = [
        line.strip().removeprefix("#").strip().removeprefix("via").strip()
        for line in block.splitlines()
        if line.strip().startswith("#")
    ]
    return {comment.partition("[")[0] for comment in comments if comment}


def declared(project: str) -> set[str]:
    """The packages that the image's extras and the base name."""
    table = tomllib.loads(project)["project"]
    wanted, todo, seen = list(table["dependencies"]), list(EXTRAS), set()
    while todo:
        extra = todo.pop()
        if extra not in seen:
            seen.add(extra)
            wanted += table["optional-dependencies"][extra]
    for text in list(wanted):
        if inner := re.match(r"trainfleet\[([^\]]*)\]", text):
            wanted += [row for name in inner[1].split(",") for row in table["optional-dependencies"][name]]
    names = {re.split(r"[\[<>=!~; ]", text, maxsplit=1)[0] for text in wanted}
    return (names - {"trainfleet"}) | set(BESIDES)


def closure(found: dict[str, str], roots: Iterable[str]) -> set[str]:
    """The roots and everything that is there for one of them."""
    kept = set(roots) & found.keys()
    while more := {name for name, block in found.items() if name not in kept and asked_by(block) & kept}:
        kept |= more
    return kept


def written(lock: str, project: str) -> str:
    """The text of images/requirements.lock."""
    found = blocks(lock)
    kept = closure(found, declared(project))
    return "# Part of ../requirements.lock, written by `python -m tools.images`.\n" + "".join(
        found[name] for name in sorted(kept)
    )


def main() -> None:
    write_whole(
        TARGET, written((ROOT / "requirements.lock").read_text(), (ROOT / "pyproject.toml").read_text())
    )
    sys.stdout.write(f"{TARGET.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
