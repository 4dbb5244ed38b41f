"""Property paths in the engine's syntax: `a.b[0].c`, `tags["x.y"]`; `[*]` in a pattern is any list item."""

from __future__ import annotations

import re
from collections.abc import Iterable

Path = tuple[str, ...]
"""Steps of a path. A list item keeps its brackets: `("subnetIds", "[0]")`."""


def split_path(path: str) -> Path:
    """Split `a.b[*].c` or `tags["x.y"]` into steps. A list item keeps its brackets."""
    return tuple(
        quoted or index or name
        for quoted, index, name in re.findall(r'\["([^"]+)"\]|(\[[0-9*]+\])|([^.\[\]]+)', path)
    )


def join_path(path: Path) -> str:
    """Return steps in the syntax of the engine's property paths."""
    text = ""
    for step in path:
        if step.startswith("["):
            text += step
        elif re.fullmatch(r"[A-Za-z_$][\w$-]*", step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


def any_item(path: Path) -> Path:
    """Return a path with `[*]` for every list item."""
    return tuple("[*]" if step.startswith("[") else step for step in path)


def covers(patterns: Iterable[Path], path: Path) -> bool:
    """Return whether a pattern names `path` or a property above it."""
    steps = any_item(path)
    return any(any_item(pattern) == steps[: len(pattern)] for pattern in patterns)
