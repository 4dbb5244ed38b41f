"""Run folders of earlier releases: the current code reads them, loads their weights and resumes from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainfleet.training.checkpoint import Checkpoints
from trainfleet.training.recipe.changes import differences
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.report.run_summary import read_run_summary
from trainfleet.training.runs.reader import read_recipe, read_rows, read_run
from trainfleet.training.stores import open_store
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.controllers import Controllers
from trainfleet.training.trainer.guards import Guards
from trainfleet.training.trainer.metrics import MetricsManager
from trainfleet.training.trainer.optimizer import make_optimizer
from trainfleet.training.trainer.state import RunState, completed
from trainfleet.training.trainer.strategies import make_strategy
from trainfleet.training.workloads.lm.gpt import Gpt
from trainfleet.training.workloads.lm.settings import LmSettings

RUNS = sorted((Path(__file__).parent / "stored").iterdir())
STEP = "step-00000016"
VOCABULARY = 256


@pytest.fixture(params=RUNS, ids=lambda path: path.name)
def stored(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def checkpoints(run_dir: Path, recipe: Recipe) -> Checkpoints:
    store = open_store(str(run_dir / "checkpoints"))
    return Checkpoints(store, recipe.checkpoint, lambda *_: None, read_only=True)


def build_model(recipe: Recipe) -> Gpt:
    assert isinstance(recipe.workload, LmSettings)
    return Gpt(recipe.workload.model, VOCABULARY)


def test_its_record_rows_and_report_are_read(stored: Path) -> None:
    run, rows = read_run(stored), read_rows(stored)
    assert (run["status"], run["step"], run["launches"][-1]["on"]) == ("finished", 16, "torchrun")
    assert rows.unreadable == 0
    assert [row["step"] for row in rows.of("train")] == list(range(1, 17))
    figures = read_run_summary(str(stored)).figures()
    assert figures["status"] == "finished"
    assert figures["test"] == run["metrics"]["test/nats_per_byte"]


def test_its_recipe_is_valid_and_the_same_as_its_checkpoints(stored: Path) -> None:
    recipe = Recipe.model_validate(read_recipe(stored))
    saved = checkpoints(stored, recipe).read(STEP)["shared"]
    assert differences(completed(saved["recipe"]), recipe.model_dump(mode="json")) == []


def test_its_weights_are_loaded_and_its_state_is_restored_at_the_same_world_size(stored: Path) -> None:
    recipe = Recipe.model_validate(read_recipe(stored))
    saved = checkpoints(stored, recipe)
    assert saved.choose() == STEP
    shared = saved.read(STEP)["shared"]
    weights = build_model(recipe)
    saved.load(STEP, {"model": weights.state_dict()}, weights)

    context = RunContext(stored)
    strategy = make_strategy(recipe, lambda: build_model(recipe), context)
    optimizer = make_optimizer(recipe.optimizer, strategy.module)
    interval = MetricsManager(("nats_per_byte", "accuracy"))
    controllers, guards = Controllers(recipe, 16), Guards(recipe.guards)
    state = RunState(recipe, strategy, optimizer, interval, shared["fingerprint"], controllers, guards)
    assert state.restore(saved, STEP, context) == 1
    assert (state.step, state.position) == (16, 256)
    assert state.metrics is not None
    assert state.metrics["validation/loss"] == read_run(stored)["metrics"]["validation/loss"]
    restored = strategy.module.state_dict()
    assert all(torch.equal(value, restored[name]) for name, value in weights.state_dict().items())
    assert all(values["step"] == 16 for values in optimizer.state_dict()["state"].values())
