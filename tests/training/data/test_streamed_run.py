"""A training run on streamed blocks: the same losses after a stop, the data recorded in run.json, and
quarantined files reported.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.training_runs import StopAfter, agrees, recipe_on, train_all
from trainfleet.errors import InputError
from trainfleet.training.data import WindowOrder, make_order
from trainfleet.training.data.dealing import deal
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer import step
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.workloads.lm.workload import LanguageModel

STREAMED = ("workload.data.stream=true", "workload.data.block_rows=16", "order.window_blocks=3", "steps=8")


def losses(run_dir: Path) -> list[float]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "train"]


def test_a_streamed_run_resumes_with_the_same_losses(
    tmp_path: Path, tiny: Callable[..., Recipe], run: Callable[..., RunResult]
) -> None:
    recipe = tiny(*STREAMED)
    run(recipe, tmp_path / "whole")
    assert run(recipe, tmp_path / "stopped", should_stop=StopAfter(5)).status == "stopped"
    run(recipe, tmp_path / "stopped")
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "whole")) == 8


def test_streamed_samples_are_dealt_by_their_blocks_and_others_by_their_positions(
    tmp_path: Path,
    tiny: Callable[..., Recipe],
    run: Callable[..., RunResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def noted(*args: Any, by_block: bool) -> list[list[int]]:
        asked.append(by_block)
        return deal(*args, by_block=by_block)

    monkeypatch.setattr(step, "deal", noted)
    for name, changes, expected in (("streamed", STREAMED, True), ("in-memory", ("steps=8",), False)):
        asked.clear()
        run(tiny(*changes), tmp_path / name)
        assert set(asked) == {expected}


@pytest.mark.deep
def test_two_ranks_that_read_their_shares_train_as_one_and_resume(
    tmp_path: Path, text_folder: Path, cache: Path
) -> None:
    recipes = {
        name: recipe_on(text_folder, *STREAMED, "steps=12", f"strategy={name}") for name in ("ddp", "fsdp")
    }
    one = train_all(recipes, tmp_path / "one", cache, 1)
    two = train_all(recipes, tmp_path / "two", cache, 2)
    cut = train_all(recipes, tmp_path / "cut", cache, 2, stop_first=5)
    for name in recipes:
        agrees(one[name], two[name])
        agrees(two[name], cut[name])


def test_streaming_changes_the_order_and_nothing_else(tiny: Callable[..., Recipe], cache: Path) -> None:
    streamed, in_memory = tiny(*STREAMED), tiny("workload.data.block_rows=16")
    workloads = [LanguageModel(recipe.workload, cache) for recipe in (streamed, in_memory)]  # type: ignore[arg-type]  # a recipe for `lm`
    orders = [make_order(recipe, each) for recipe, each in zip((streamed, in_memory), workloads, strict=True)]
    assert [isinstance(each, WindowOrder) for each in orders] == [True, False]
    assert orders[0].size == orders[1].size
    for each in workloads:
        each.prefetch("train", orders[0].upcoming(0, 8))
    first, second = (each.batch("train", orders[0].indices(0, 8)) for each in workloads)
    assert all((first[name] == second[name]).all() for name in first)


@pytest.fixture
def with_bad_file(tmp_path: Path, text_folder: Path) -> Path:
    """The small text with an empty file among the others."""
    folder = tmp_path / "text"
    shutil.copytree(text_folder, folder)
    (folder / "part0" / "empty.txt").write_bytes(b"")
    return folder


def test_a_bad_file_ends_the_run_or_is_in_run_json_and_events(
    tmp_path: Path, tiny: Callable[..., Recipe], run: Callable[..., RunResult], with_bad_file: Path
) -> None:
    with pytest.raises(InputError, match=r"part0/empty\.txt: is empty"):
        run(tiny(*STREAMED, f"workload.data.source={with_bad_file}"), tmp_path / "refused")
    events: list[tuple[str, str]] = []
    asked = (
        "workload.data.integrity=quarantine",
        "workload.data.quarantine_limit=0.05",
        f"workload.data.source={with_bad_file}",
    )
    run(tiny(*STREAMED, *asked), tmp_path / "run", on_event=lambda what, text: events.append((what, text)))
    data: dict[str, Any] = json.loads((tmp_path / "run" / "run.json").read_text())["data"]
    assert data["left_out"] == {"count": 1, "named": [{"where": "part0/empty.txt", "what": "is empty"}]}
    assert ("quarantined", "1 of the data's files and rows are left out: part0/empty.txt is empty") in events
    manifest = json.loads(Path(data["manifest"]).read_text())
    assert manifest["digest"] == data["digest"]
    assert manifest["source_files"] == 41


def test_prepared_data_that_matches_the_recipe_can_be_the_source(
    tiny: Callable[..., Recipe], cache: Path
) -> None:
    first = LanguageModel(tiny().workload, cache)  # type: ignore[arg-type]  # a recipe for `lm`
    where = first.files.prepared.where
    again = LanguageModel(tiny(f"workload.data.source={where}").workload, cache)  # type: ignore[arg-type]  # the same
    assert again.fingerprint() == first.fingerprint()
    with pytest.raises(InputError, match="was prepared with context 32, the recipe has 16"):
        LanguageModel(tiny(f"workload.data.source={where}", "workload.model.context=16").workload, cache)  # type: ignore[arg-type]  # the same
