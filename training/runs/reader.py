"""Read a run folder without torch, in whatever state an interruption left it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.training.runs.schema import MARKER, RunRecord

__all__ = ["MARKER", "Rows", "last_lines", "last_sign", "parse_rows", "read_recipe", "read_rows", "read_run"]


def read_run(run_dir: Path) -> RunRecord:
    """run.json; empty if it does not exist or cannot be read."""
    try:
        document: RunRecord = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def read_recipe(run_dir: Path) -> dict[str, Any]:
    """recipe.yaml of the run's last start; empty if it does not exist or cannot be read."""
    try:
        document = yaml_limits.load((run_dir / "recipe.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return document if isinstance(document, dict) else {}


@dataclass(frozen=True)
class Rows:
    """The rows of metrics.jsonl in order, each one of the row types in `runs.schema` with its metrics as
    further
    keys, and the number of unreadable lines: an interruption can truncate the last one.
    """

    rows: list[dict[str, Any]]
    unreadable: int

    def of(self, kind: str) -> list[dict[str, Any]]:
        return self._by_kind.get(kind, [])

    @cached_property
    def _by_kind(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            found.setdefault(str(row.get("kind")), []).append(row)
        return found


def read_rows(run_dir: Path, most_bytes: int | None = None) -> Rows:
    """The rows of a run; none if nothing was written yet. With `most_bytes` only those in the end of the
    file.
    """
    try:
        with (run_dir / "metrics.jsonl").open("rb") as file:
            size = file.seek(0, 2)
            skipped = 0 if most_bytes is None else max(0, size - most_bytes)
            file.seek(skipped)
            if skipped:
                file.readline()  # a part of a row
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return Rows([], 0)
    return parse_rows(text)


def parse_rows(text: str) -> Rows:
    """The rows in the text of a metrics.jsonl."""
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
    """The non-empty lines of a log, from the last one backwards."""
    try:
        with file.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - tail_bytes))
            text = log.read().decode("utf-8", errors="replace")
    except OSError:
        return
    yield from (line.strip() for line in reversed(text.splitlines()) if line.strip())


def last_sign(run_dir: Path) -> float | None:
    """When the run last wrote to its folder, in seconds since 1970: an estimate of when a killed
    run ended.
    """
    times = []
    for name in ("metrics.jsonl", "run.json", "launch.log"):
        with contextlib.suppress(OSError):
            times.append((run_dir / name).stat().st_mtime)
    return max(times, default=None)


def real_launches(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The launches in run.json, without those that only followed a run (`trainfleet runs attach`)."""
    found = record.get("launches")
    launches = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    return [each for each in launches if not each.get("attached")]
