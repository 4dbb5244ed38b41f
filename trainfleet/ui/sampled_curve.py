"""A few points of a run's loss, read at some places of metrics.jsonl: the list never reads whole files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

POINTS = 40
BLOCK = 4096
"""Bytes read at each place; a row of metrics has some 500."""


def sampled_curve(metrics: Path) -> Iterator[tuple[float, float]]:
    """Step and training loss at POINTS places of the file, in order. Not their minimum or maximum."""
    try:
        with metrics.open("rb", buffering=0) as file:
            size, last = file.seek(0, 2), -1.0
            for index in range(POINTS):
                at = max(0, round(index * (size - BLOCK) / (POINTS - 1)))
                file.seek(at)
                found = _first_row(file.read(BLOCK), whole=at == 0)
                if found and found[0] > last:
                    last = found[0]
                    yield found
    except OSError:
        return


def _first_row(block: bytes, *, whole: bool) -> tuple[float, float] | None:
    """The first row of training that is complete in a block."""
    for line in block.split(b"\n")[0 if whole else 1 :]:
        try:
            row = json.loads(line)
            step, loss = float(row["step"]), float(row["loss"])
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if row.get("kind") == "train" and math.isfinite(loss):
            return step, loss
    return None
