"""Reads which packages a project locks, from the file that its toolchain uses."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits

BY_TOOLCHAIN = {"uv": "uv.lock", "poetry": "poetry.lock"}
FILES = ("requirements.lock", "requirements.txt", "uv.lock", "poetry.lock", "pyproject.toml")
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*(?P<spec>[^;#]*)")


@dataclass(frozen=True)
class Pin:
    """One locked package. `version` is exact; `spec` is what a file with ranges has."""

    name: str
    version: str = ""
    spec: str = ""
    requirement: str = ""
    """The line for an installer, with hashes if the file has them."""

    @property
    def shown(self) -> str:
        """The version, or the range."""
        return self.version or self.spec or "any"


@dataclass(frozen=True)
class Lock:
    """The packages of a project and the file that names them; `file` is empty if there is none."""

    file: str = ""
    pins: dict[str, Pin] = field(default_factory=dict)


def read_lock(root: Path, prefix: str = "") -> Lock:
    """Return what a project locks.

    Args:
        root: the folder of Pulumi.yaml.
        prefix: the folder below the repository's top; a lock may be in any folder between.
    """
    names = dict.fromkeys(
        [*([BY_TOOLCHAIN[tool]] if (tool := _toolchain(root)) in BY_TOOLCHAIN else []), *FILES]
    )
    for folder in (root, *list(root.parents)[: len(Path(prefix).parts)]):
        for name in names:
            if (file := folder / name).is_file():
                pins = {pin.name: pin for pin in _read(file)}
                if pins:
                    return Lock(name, pins)
    return Lock()


def _toolchain(root: Path) -> str:
    try:
        runtime = (yaml_limits.load((root / "Pulumi.yaml").read_text()) or {}).get("runtime")
    except (OSError, yaml.YAMLError, AttributeError):
        return ""
    options = runtime.get("options") if isinstance(runtime, dict) else None
    return str(options.get("toolchain") or "") if isinstance(options, dict) else ""


def _read(file: Path) -> Iterator[Pin]:
    try:
        if file.name.endswith((".txt", "requirements.lock")):
            yield from _requirements(file, set())
            return
        document = tomllib.loads(file.read_text())
    except (OSError, ValueError):
        return
    if file.name == "pyproject.toml":
        project = document.get("project") or {}
        optional = project.get("optional-dependencies") or {}
        for line in [
            *(project.get("dependencies") or ()),
            *(one for group in optional.values() for one in group),
        ]:
            if (pin := _pin(str(line))) is not None:
                yield pin
        return
    for package in document.get("package") or ():
        yield from _locked(package)


def _locked(package: dict[str, Any]) -> Iterator[Pin]:
    name, version = str(package.get("name") or ""), package.get("version")
    if name and isinstance(version, str):
        yield Pin(_normal(name), version, requirement=f"{name}=={version}")


def _requirements(file: Path, seen: set[Path]) -> Iterator[Pin]:
    if file in seen or not file.is_file():
        return
    seen.add(file)
    for line in file.read_text().replace("\\\n", " ").splitlines():
        text = line.strip()
        if match := re.match(r"^(?:-r|--requirement)[ =]+(\S+)", text):
            yield from _requirements((file.parent / match.group(1)), seen)
        elif text and not text.startswith(("-", "#")) and (pin := _pin(text)) is not None:
            yield pin


def _pin(text: str) -> Pin | None:
    match = _REQUIREMENT.match(text)
    if match is None or "@" in match["spec"]:
        return None
    spec = match["spec"].split("--hash")[0].strip()
    exact = re.fullmatch(r"==\s*([\w.+!-]+)", spec)
    hashes = " ".join(re.findall(r"--hash=\S+", text))
    requirement = f"{match['name']}{spec} {hashes}".strip()
    return Pin(_normal(match["name"]), exact.group(1) if exact else "", "" if exact else spec, requirement)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
