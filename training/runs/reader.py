"""Reading a run's folder without torch, whatever state a kill left it in. Used by the launchers and the
report.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MARKER = "COMMITTED"
"""In a checkpoint that is whole; written by `trainfleet.training.checkpoint.files`, which needs torch."""


def read_run(run_dir: Path) -> dict[str, Any]:
    """run.json, or nothing where there is none yet."""
    try:
        return dict(json.loads((run_dir / "run.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def read_recipe(run_dir: Path) -> dict[str, Any]:
    """recipe.yaml as the run was started with, or nothing where it cannot be read."""
    try:
        document = yaml.safe_load((run_dir / "recipe.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return document if isinstance(document, dict) else {}


@dataclass(frozen=True)
class Rows:
    """The rows of metrics.jsonl in order, and how many lines could not be read (a kill cuts the last one
    short).
    """

    rows: list[dict[str, Any]]
    unreadable: int

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row.get("kind") == kind]


def read_rows(run_dir: Path) -> Rows:
    """The rows of a run; none where nothing was written yet."""
    try:
        text = (run_dir / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Rows([], 0)
    rows, unreadable = [], 0
    for line in filter(str.strip, text.splitlines()):
        try:
            row = json.loads(line)
        except ValueError:
            unreadable += 1
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
        else:
            unreadable += 1
    return Rows(rows, unreadable)


def last_lines(file: Path, tail_bytes: int = 20_000) -> Iterator[str]:
    """The lines of a log from its end backwards, empty ones left out."""
    try:
        with file.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - tail_bytes))
            text = log.read().decode("utf-8", errors="replace")
    except OSError:
        return
    yield from (line.strip() for line in reversed(text.splitlines()) if line.strip())


def last_sign(run_dir: Path) -> float | None:
    """When the run last wrote something here, in seconds since 1970: for one that was killed, about when that
    was.
    """
    times = []
    for name in ("metrics.jsonl", "run.json", "launch.log"):
        with contextlib.suppress(OSError):
            times.append((run_dir / name).stat().st_mtime)
    return max(times, default=None)


def folder_size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
