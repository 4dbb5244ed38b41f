"""How a new repository installs the version of Trainfleet that created it.

The package is not on a public index. A version installed from Git is required from there, at the same commit.
A version installed from a wheel file takes a copy of that wheel along.
"""

from __future__ import annotations

import importlib.metadata
import json
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import packaging.requirements
from packaging.utils import canonicalize_name

from trainfleet import __version__

REQUIREMENTS, WHEELS = "requirements.txt", "wheels"


@dataclass(frozen=True)
class Requirement:
    """The part of a requirement after the extras, and the wheel that the repository has to contain."""

    source: str = f"=={__version__}"
    wheel: Path | None = None

    def line(self, extras: str) -> str:
        """Return the line of requirements.txt."""
        return f"trainfleet[{extras}]{self.source}"


def installed() -> Requirement:
    """Return where this installation came from (PEP 610); only its version if nobody else can use that."""
    try:
        text = importlib.metadata.distribution("trainfleet").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        text = None
    return from_direct_url(json.loads(text)) if text else Requirement()


def from_direct_url(document: dict[str, object]) -> Requirement:
    """Return the requirement of a `direct_url.json`."""
    url, vcs = str(document.get("url", "")), document.get("vcs_info")
    if isinstance(vcs, dict):
        return Requirement(f" @ {vcs.get('vcs')}+{url}@{vcs.get('commit_id')}")
    if url.startswith("https://"):
        return Requirement(f" @ {url}")
    wheel = Path(urllib.request.url2pathname(urllib.parse.urlparse(url).path))
    if url.startswith("file://") and wheel.suffix == ".whl" and wheel.is_file():
        return Requirement(wheel=wheel)
    return Requirement()


def with_one_line(base: str, here: str, new: str) -> tuple[str, str, str]:
    """Return three versions of REQUIREMENTS with the same line for Trainfleet, which then does not conflict.

    It has the extras of both sides, and requires what the new version requires, unless the range that is
    required here contains it. Unchanged if a version has no such line, several, or one with options.
    """
    lines = [_own_line(text) for text in (base, here, new)]
    old, mine, later = (None if line is None else packaging.requirements.Requirement(line) for line in lines)
    if old is None or mine is None or later is None:
        return base, here, new
    extras = ",".join([*sorted(mine.extras), *sorted(later.extras - old.extras - mine.extras)])
    pinned = next((each.version for each in later.specifier if each.operator == "=="), None)
    if pinned and not mine.url and mine.specifier.contains(pinned, prereleases=True):
        source = str(mine.specifier)
    else:
        source = f" @ {later.url}" if later.url else str(later.specifier)
    marker = f" ; {mine.marker}" if mine.marker else ""
    line = f"trainfleet[{extras}]{source}{marker}" if extras else f"trainfleet{source}{marker}"
    first, second, third = (
        text.replace(str(each), line, 1) for text, each in zip((base, here, new), lines, strict=True)
    )
    return first, second, third


def _own_line(text: str) -> str | None:
    """Return the requirement of Trainfleet, without a comment; None if there is not exactly one."""
    found = []
    for line in text.splitlines():
        try:
            requirement = packaging.requirements.Requirement(line.partition(" #")[0])
        except packaging.requirements.InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) == "trainfleet":
            found.append(line.partition(" #")[0].strip())
    return found[0] if len(found) == 1 else None
