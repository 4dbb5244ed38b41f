"""Two ranks with shards, one of which is killed in a step or a save, resume with the same losses as without a
kill.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_loop import KILLS, results
from tests.training.training_runs import rows_of, train_all
from trainfleet.training.recipe.schema import Recipe

Make = Callable[..., Recipe]
RunRanks = Callable[..., list[int]]
SAMPLED = ("fsdp", "between files and marker")
CASES = [(strategy, moment) for strategy in ("fsdp", "hsdp") for moment in KILLS]


def recipe_for(tiny: Make, strategy: str) -> Recipe:
    overrides = (
        "workload.model.dropout=0.1",
        "workload.model.layers=2",
        "batch.micro_batch=2",
        "log.every=3",
        "checkpoint.every=2",
    )
    return tiny("scaling.workers=2", f"strategy={strategy}", *overrides)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Rows by strategy, created on first use."""
    return {"folder": tmp_path_factory.mktemp("undisturbed")}


@pytest.mark.parametrize(
    ("strategy", "moment"),
    [
        pytest.param(*case, marks=() if case == SAMPLED else pytest.mark.deep, id=", ".join(case))
        for case in CASES
    ],
)
def test_a_killed_run_with_shards_resumes_exactly(
    tmp_path: Path,
    tiny: Make,
    cache: Path,
    run_ranks: RunRanks,
    undisturbed: dict[str, Any],
    strategy: str,
    moment: str,
) -> None:
    recipe = recipe_for(tiny, strategy)
    if strategy not in undisturbed:
        train_all({strategy: recipe}, undisturbed["folder"], cache, 2)
        undisturbed[strategy] = results(undisturbed["folder"] / strategy)
    victim = 1 if "step" in moment else 0  # both ranks write files, rank 0 writes the marker
    killed = run_ranks(recipe, tmp_path, 2, before=lambda rank: rank == victim and KILLS[moment]())
    assert killed[victim] == -signal.SIGKILL
    assert run_ranks(recipe, tmp_path, 2) == [0, 0]
    assert results(tmp_path) == undisturbed[strategy]
    assert rows_of(tmp_path)[-1]["kind"] == "test"
