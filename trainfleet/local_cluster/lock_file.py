"""Reads a pip lock file by package, and the package index that this machine's pip is configured for."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

_BLOCK = re.compile(r"^(?P<name>[\w.-]+)(?:\[[^\]]*\])?==[^\n]*\n(?:(?: {4}).*\n?)*", re.M)


def blocks(lock: str) -> dict[str, str]:
    """The lock's lines by package; all entries of a package that has a version per Python."""
    found: dict[str, str] = {}
    for match in _BLOCK.finditer(lock):
        found[match["name"]] = found.get(match["name"], "") + match.group(0)
    return found


def pip_index(python: Path) -> dict[str, str]:
    """The index that pip is configured for, as a variable for uv; empty when pip has none."""
    settings = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    url = re.search(r"(?:global|install|:env:)\.index-url='([^']+)'", settings)
    return {"UV_DEFAULT_INDEX": url.group(1)} if url and "UV_DEFAULT_INDEX" not in os.environ else {}
