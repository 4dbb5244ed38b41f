"""Snapshots of the surfaces that others depend on; `python -m tests.snapshots --update` writes them again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.snapshots import surfaces

FOLDER = Path(__file__).parent
FILES: dict[str, Callable[[], Any]] = {
    "command_line": surfaces.command_line,
    "spec": surfaces.spec,
    "contract": surfaces.contract,
    "recipe": surfaces.recipe,
    "policies": surfaces.policies,
}
"""Surfaces that the installed code alone tells; `environment`, `run_folder` and the URNs need files, a run or
the engine.
"""


def read(name: str) -> Any:
    """A stored snapshot."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def write(name: str, document: Any) -> None:
    """Store a snapshot."""
    text = json.dumps(document, indent=1, sort_keys=True, default=str)
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def stored(document: Any) -> Any:
    """A document as it is after it was stored."""
    return json.loads(json.dumps(document, default=str))
