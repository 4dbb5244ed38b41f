"""Trains several recipes one after the other on the same ranks, because starting ranks takes most of the time
of a small test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.training.ranks import start_ranks
from trainfleet.training.recipe.schema import Recipe

LIMIT_S = 100
"""Per recipe, on a busy machine. On an idle one, a recipe takes a second or two."""

Rows = list[dict[str, Any]]
TOLERANCE = 2e-5
"""Relative difference of two runs on different numbers of ranks."""
SHAPE = ("workload.model.layers=2", "workload.model.dropout=0.0")


class StopAfter:
    """A `should_stop` that returns True from its `steps`th call on."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0


def train_all(
    recipes: Mapping[str, Recipe],
    folder: Path,
    cache: Path,
    world_size: int,
    stop_first: int = 0,
    *,
    limit_s: float = LIMIT_S,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Rows]:
    """Train each recipe in FOLDER/NAME, within `limit_s` each; returns the rows of metrics.jsonl by name.

    With `stop_first`, each is stopped after that number of steps and then resumed. `environment` is set in
    the ranks, which are not forked from this process.
    """

    def work(_: int) -> None:
        os.environ.update(environment or {})
        from trainfleet.training.runtime import process_group
        from trainfleet.training.trainer.context import RunContext
        from trainfleet.training.trainer.loop import train

        world = process_group.init_from_env(use_gpu=False, timeout_s=120)
        place = (world.rank, world.world_size, world.local_rank, world.local_world_size)
        for name, recipe in recipes.items():
            if stop_first:
                train(
                    recipe, RunContext(folder / name, *place, cache=cache, should_stop=StopAfter(stop_first))
                )
            train(recipe, RunContext(folder / name, *place, cache=cache))
        process_group.shutdown()

    assert start_ranks(work, world_size, limit_s * len(recipes)) == [0] * world_size
    return {name: rows_of(folder / name) for name in recipes}


def on_ranks(check: Callable[[int], Any], world_size: int, folder: Path) -> list[Any]:
    """Call `check(rank)` in a process group; returns the result of each rank, passed as JSON."""

    def work(rank: int) -> None:
        from trainfleet.training.runtime import process_group

        process_group.init_from_env(use_gpu=False, timeout_s=120)
        (folder / f"rank-{rank}.json").write_text(json.dumps(check(rank)))
        process_group.shutdown()

    assert start_ranks(work, world_size) == [0] * world_size
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world_size)]


def rows_of(run_dir: Path) -> Rows:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def metric_values(rows: Rows, name: str, kind: str = "train") -> list[float]:
    return [row[name] for row in rows if row["kind"] == kind]


def recipe_on(text: Path, *overrides: str) -> Recipe:
    """A short run of `lm-tiny` on the files of a folder, with two layers and without dropout."""
    from trainfleet.training.recipe.load import load_recipe

    data = [
        f"workload.data.source={text}",
        "workload.data.glob='**/*.txt'",
        "workload.data.validation_share=0.15",
        "workload.data.test_share=0.15",
    ]
    course = [
        "scaling.workers=1",
        "steps=12",
        "validation.every=6",
        "checkpoint.every=12",
        "log.every=1",
        "log.tensorboard=false",
    ]
    return load_recipe("lm-tiny", [*data, *course, *SHAPE, *overrides])


def agrees(rows: Rows, other: Rows) -> None:
    """Assert that two runs have the same losses, gradient norms and learning rates."""
    for name in ("loss", "grad_norm", "lr"):
        assert metric_values(rows, name) == pytest.approx(metric_values(other, name), rel=TOLERANCE), name
    assert metric_values(rows, "validation/loss", "validation") == pytest.approx(
        metric_values(other, "validation/loss", "validation"), rel=TOLERANCE
    )
