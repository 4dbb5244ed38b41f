"""A whole training on streamed blocks: the same after a stop, the data noted in run.json, and what was left
out named.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.several import StopAfter
from trainfleet.errors import InputError
from trainfleet.training.data import WindowOrder, make_order
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.workloads.lm.workload import LanguageModel

STREAMED = ("workload.data.stream=true", "workload.data.block_rows=16", "order.window_blocks=3", "steps=8")


def losses(run_dir: Path) -> list[float]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "train"]


def test_a_streamed_run_goes_on_after_a_stop_as_if_nothing_had_been(
    tmp_path: Path, tiny: Callable[..., Recipe], run: Callable[..., RunResult]
) -> None:
    recipe = tiny(*STREAMED)
    run(recipe, tmp_path / "whole")
    assert run(recipe, tmp_path / "stopped", should_stop=StopAfter(5)).status == "stopped"
    run(recipe, tmp_path / "stopped")
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "whole")) == 8


def test_streaming_changes_the_order_and_nothing_else(tiny: Callable[..., Recipe], cache: Path) -> None:
    streamed, at_hand = tiny(*STREAMED), tiny("workload.data.block_rows=16")
    held = [LanguageModel(recipe.workload, cache) for recipe in (streamed, at_hand)]  # type: ignore[arg-type]  # a recipe for `lm`
    orders = [make_order(recipe, each) for recipe, each in zip((streamed, at_hand), held, strict=True)]
    assert [isinstance(each, WindowOrder) for each in orders] == [True, False]
    assert orders[0].size == orders[1].size
    for each in held:
        each.prefetch("train", orders[0].upcoming(0, 8))
    first, second = (each.batch("train", orders[0].indices(0, 8)) for each in held)
    assert all((first[name] == second[name]).all() for name in first)


@pytest.fixture
def spoiled(tmp_path: Path, text_folder: Path) -> Path:
    """The small text with an empty file among the others."""
    folder = tmp_path / "text"
    shutil.copytree(text_folder, folder)
    (folder / "part0" / "empty.txt").write_bytes(b"")
    return folder


def test_a_bad_file_ends_a_run_or_is_named_in_run_json_and_events(
    tmp_path: Path, tiny: Callable[..., Recipe], run: Callable[..., RunResult], spoiled: Path
) -> None:
    with pytest.raises(InputError, match=r"part0/empty\.txt: is empty"):
        run(tiny(*STREAMED, f"workload.data.source={spoiled}"), tmp_path / "refused")
    told: list[tuple[str, str]] = []
    asked = (
        "workload.data.integrity=quarantine",
        "workload.data.quarantine_limit=0.05",
        f"workload.data.source={spoiled}",
    )
    run(tiny(*STREAMED, *asked), tmp_path / "run", on_event=lambda what, text: told.append((what, text)))
    data: dict[str, Any] = json.loads((tmp_path / "run" / "run.json").read_text())["data"]
    assert data["left_out"] == {"count": 1, "named": [{"where": "part0/empty.txt", "what": "is empty"}]}
    assert ("quarantined", "1 of the data's files and rows are left out: part0/empty.txt is empty") in told
    manifest = json.loads(Path(data["manifest"]).read_text())
    assert manifest["digest"] == data["digest"]
    assert len(manifest["sources"]) == 41


def test_prepared_data_can_be_the_source_when_it_is_what_the_recipe_says(
    tiny: Callable[..., Recipe], cache: Path
) -> None:
    first = LanguageModel(tiny().workload, cache)  # type: ignore[arg-type]  # a recipe for `lm`
    where = first.files.prepared.where
    again = LanguageModel(tiny(f"workload.data.source={where}").workload, cache)  # type: ignore[arg-type]  # the same
    assert again.fingerprint() == first.fingerprint()
    with pytest.raises(InputError, match="was prepared with context 32, the recipe has 16"):
        LanguageModel(tiny(f"workload.data.source={where}", "workload.model.context=16").workload, cache)  # type: ignore[arg-type]  # the same
