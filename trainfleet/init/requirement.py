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

from trainfleet import __version__

WHEELS = "wheels"


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
