"""Names of checkpoints, and which of them to keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainfleet.training.recipe.schema import CheckpointConfig

Notes = Mapping[str, Mapping[str, Any]]
"""`step` and `metrics` of each checkpoint by its name, oldest first."""


def step_name(step: int) -> str:
    """The folder name of a step: `step-00000100`; names sort like steps."""
    return f"step-{step:08}"


def step_of(name: str) -> int:
    """The step of a folder name; -1 for other names."""
    digits = name.removeprefix("step-")
    return int(digits) if digits.isdigit() else -1


def best_of(notes: Notes, config: CheckpointConfig) -> str | None:
    """The checkpoint with the best `metric`, the earliest of equals; None if none was measured."""
    sign = 1 if config.mode == "min" else -1
    scored = [
        (sign * float(note["metrics"][config.metric]), name)
        for name, note in notes.items()
        if config.metric in note.get("metrics", {})
    ]
    return min(scored)[1] if scored else None


def retained(notes: Notes, config: CheckpointConfig) -> set[str]:
    """The checkpoints to keep."""
    names = list(notes)
    keep = set(names[-config.keep_last :])
    best = best_of(notes, config)
    if config.keep_best and best:
        keep.add(best)
    if config.keep_every:
        keep |= {name for name in names if step_of(name) % config.keep_every == 0}
    return keep
