"""Each recipe has its golden losses with every strategy. `python -m tests.training.golden --refresh` updates
them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.golden import FOLDER, GOLDEN, TOLERANCE, read, write_text
from tests.training.training_runs import metric_values, rows_of, train_all
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.loop import train

CASES = [pytest.param(name, marks=pytest.mark.deep if golden.deep else ()) for name, golden in GOLDEN.items()]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("golden") / "text")


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_has_its_golden_losses(tmp_path: Path, cache: Path, text: Path, name: str) -> None:
    train(GOLDEN[name].load(text), RunContext(tmp_path, cache=cache))
    known = read(name)
    assert len(known) >= 10
    assert known[-1] < known[0]
    assert metric_values(rows_of(tmp_path), "loss") == pytest.approx(known, rel=TOLERANCE)


@pytest.mark.deep
@pytest.mark.parametrize("name", ["lm-tiny-late", "lm-tiny"])
def test_a_recipe_has_its_golden_losses_with_shards_on_two_ranks(
    tmp_path: Path, cache: Path, text: Path, name: str
) -> None:
    recipes = {strategy: GOLDEN[name].load(text, strategy) for strategy in ("ddp", "fsdp", "hsdp")}
    for rows in train_all(recipes, tmp_path, cache, 2).values():
        assert metric_values(rows, "loss") == pytest.approx(read(name), rel=TOLERANCE)


def test_every_file_of_golden_losses_is_compared() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(GOLDEN)
