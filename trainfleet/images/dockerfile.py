"""images/Dockerfile as the builders read it: its stages, what a target depends on, and a digest of that.

Only what this Dockerfile uses is understood: `FROM ... AS`, `COPY`, `--from=` and `ARG`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.training.launch.ignore_rules import IgnoreRules

TARGETS = ("cpu", "cuda", "efa", "infiniband")
"""The stages that can be built; docs/training-image.md says for which nodes."""
LOCKS = ("requirements.lock", "ray_up.lock")
REQUIREMENTS_STAGE = "with-requirements"
BASE_TARGET = "BASE_TARGET"
REQUIREMENTS = "REQUIREMENTS"
CONTEXT = "requirements"
"""The stage that installs the packages of `--requirements`, the build arguments with the target that it
extends and the file's name, and the build context with the file.
"""
_SHORT = 12
_FROM = re.compile(r"FROM\s+(?P<base>\S+)(?:\s+AS\s+(?P<name>\S+))?$", re.I)


@dataclass(frozen=True)
class Stage:
    """One stage: the image or stage that it starts from, and its instructions, one per item."""

    base: str
    instructions: tuple[str, ...]

    @property
    def sources(self) -> set[str]:
        """The images, stages and build contexts that it copies from or mounts."""
        return {name for each in self.instructions for name in re.findall(r"\bfrom=([^,\s]+)", each)}

    def copied(self) -> Iterator[str]:
        """The paths in the checkout that it copies."""
        for each in self.instructions:
            words = each.split()
            if words[0].upper() in ("COPY", "ADD") and not any(word.startswith("--from=") for word in words):
                yield from [word for word in words[1:-1] if not word.startswith("--")]


@dataclass(frozen=True)
class Source:
    """A checkout: the build context."""

    folder: Path

    @property
    def dockerfile(self) -> Path:
        return self.folder / "images" / "Dockerfile"

    @property
    def ignore_file(self) -> Path:
        return self.folder / "images" / "Dockerfile.dockerignore"

    @property
    def locked_packages(self) -> tuple[Path, ...]:
        """The locks of what every target has in its environment for training."""
        images = self.folder / "images"
        return tuple(file for name in LOCKS if (file := images / name).is_file())

    def content_digest(self, target: str, requirements: Path | None, build_args: Mapping[str, str]) -> str:
        """The first 12 hexadecimal digits of a SHA-256 over all that the build of a target reads here.

        That is the instructions of its stages, the files that they copy (name, content, executable bit), the
        build arguments and the locked packages of the user. Debian packages, and a base image that is named
        by a tag, are not part of it.
        """
        last = REQUIREMENTS_STAGE if requirements else target
        preamble, stages = read_stages(self.dockerfile.read_text(encoding="utf-8"), target)
        digest = hashlib.sha256()
        rows = [target, *preamble, *(f"{name}={value}" for name, value in sorted(build_args.items()))]
        paths: list[str] = []
        for name in closure(stages, last):
            rows += [f"{name} {stages[name].base}", *stages[name].instructions]
            paths += stages[name].copied()
        digest.update("\0".join(rows).encode())
        ignored = ignore_rules(self.ignore_file.read_text(encoding="utf-8"))
        for path in sorted(set(paths)):
            for file in self._files(path, ignored):
                digest.update(f"\0{file.relative_to(self.folder)}\0".encode() + _content(file))
        if requirements:
            digest.update(requirements.read_bytes())
        return digest.hexdigest()[:_SHORT]

    def _files(self, path: str, ignored: IgnoreRules) -> Iterator[Path]:
        """The files below a path in the checkout that are not ignored, in order."""
        top = self.folder / path
        if not top.exists():
            raise InputError("cannot build an image", [Problem(str(top), "does not exist")])
        if not top.is_dir():
            yield top
            return
        for name in sorted(each.name for each in top.iterdir()):
            inner = top / name
            is_folder = inner.is_dir() and not inner.is_symlink()
            if ignored.ignores(f"{path}/{name}", is_folder=is_folder):
                continue
            if is_folder:
                yield from self._files(f"{path}/{name}", ignored)
            else:
                yield inner


def _content(file: Path) -> bytes:
    if file.is_symlink():
        return b"link " + os.fsencode(file.readlink())
    kind = b"x " if os.access(file, os.X_OK) else b"- "
    return kind + hashlib.sha256(file.read_bytes()).digest()


def read_stages(text: str, base_target: str = "") -> tuple[list[str], dict[str, Stage]]:
    """The instructions before the first stage, and the stages by name.

    Args:
        text: a Dockerfile.
        base_target: replaces ${BASE_TARGET} in a FROM.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    logical = re.sub(r"[ \t]*\\\n[ \t]*", " ", "\n".join(lines)).splitlines()
    preamble: list[str] = []
    stages: dict[str, tuple[str, list[str]]] = {}
    current = preamble
    for line in (each.strip() for each in logical):
        if found := _FROM.fullmatch(line):
            current = []
            base = found["base"].replace(f"${{{BASE_TARGET}}}", base_target)
            stages[found["name"] or str(len(stages))] = (base, current)
        elif line:
            current.append(line)
    return preamble, {name: Stage(base, tuple(rows)) for name, (base, rows) in stages.items()}


def closure(stages: Mapping[str, Stage], target: str) -> list[str]:
    """The stages that a target is built from, in the order of the file."""
    needed, todo = set(), [target]
    while todo:
        name = todo.pop()
        if name in stages and name not in needed:
            needed.add(name)
            todo += [stages[name].base, *stages[name].sources]
    return [name for name in stages if name in needed]


def declared_arguments(text: str) -> list[str]:
    """The build arguments that a Dockerfile declares, without those that `--requirements` sets."""
    found = re.findall(r"^ARG\s+(\w+)", text, re.M)
    return [name for name in found if name not in (BASE_TARGET, REQUIREMENTS)]


def ignore_rules(text: str) -> IgnoreRules:
    """The rules of a .dockerignore file, whose patterns begin at the top folder, unlike git's."""
    rows = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    anchored = [f"!/{row[1:]}" if row.startswith("!") else f"/{row}" for row in rows]
    return IgnoreRules().with_text("\n".join(anchored))


def find_source(given: Path | None) -> Source:
    """The checkout to build from: the given folder, the folder of the call or one above it, or the one that
    this package is installed from.

    Raises:
        InputError: none has images/Dockerfile. An installed package does not contain it.
    """
    here = Path.cwd()
    package = Path(__file__).resolve().parents[2]
    for folder in [given.resolve()] if given else [here, *here.parents, package]:
        source = Source(folder)
        if source.dockerfile.is_file() and source.ignore_file.is_file():
            return source
    raise InputError(
        "the training image is built from a checkout",
        [
            Problem(
                str(given or here), "has no images/Dockerfile", "run this in a checkout, or --checkout DIR"
            )
        ],
    )
