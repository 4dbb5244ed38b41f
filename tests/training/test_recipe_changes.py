"""Each key that a resumed run may change takes effect, and changes nothing else: the table of docs/training.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT
from tests.training.recipe_changes import CHANGES, STOPPED, ordered, rates, watch
from tests.training.training_runs import StopAfter, metric_values, recipe_on, rows_of
from trainfleet.errors import InputError
from trainfleet.training.recipe.changes import FREE_KEYS
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.recipe.schema_control import GuardsConfig
from trainfleet.training.runs.reader import read_rows
from trainfleet.training.trainer import loop
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.controllers import Controllers, StepStats
from trainfleet.training.trainer.device_memory import DeviceMemoryError
from trainfleet.training.trainer.guards import Guards
from trainfleet.training.trainer.loop import train
from trainfleet.training.trainer.optimizer import learning_rate
from trainfleet.training.trainer.state import completed

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]


@pytest.fixture(scope="module")
def unchanged(text_folder: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run without a change."""
    folder = tmp_path_factory.mktemp("unchanged")
    train(recipe_on(text_folder, "workload.model.layers=1"), RunContext(folder, cache=cache))
    return metric_values(rows_of(folder), "loss")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_key_takes_effect_when_a_run_resumes(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch, unchanged: list[float], name: str
) -> None:
    change, starts = CHANGES[name], watch(monkeypatch)
    run(tiny(*change.before), tmp_path, should_stop=StopAfter(STOPPED))
    (first,) = starts
    moments = first.current_moments()
    changed = tiny(*change.before, *change.overrides)
    allow = tuple(key for key in change.keys if key not in FREE_KEYS)
    if allow:
        with pytest.raises(InputError) as caught:
            run(changed, tmp_path)
        assert all(problem.where.startswith(change.keys) for problem in caught.value.problems)
    result = run(changed, tmp_path, allow_changes=allow)
    rows = read_rows(tmp_path).rows
    steps = [row for row in rows if row["kind"] == "train"]
    assert (result.resumed_from, result.step) == (STOPPED, change.steps)
    assert sum(row["global_batch"] for row in steps) == change.samples
    for row in steps[STOPPED:]:
        assert {key: row[key] for key in change.rows} == change.rows
        assert row["loss"] < steps[0]["loss"]
    if change.same_losses:
        assert [row["loss"] for row in steps] == pytest.approx(unchanged, rel=1e-4)
    resumed = starts[-1]
    resumed.rows = [row for row in rows if row["step"] > STOPPED]
    if changed.controllers.rate.kind == "off":
        expected = [
            learning_rate(changed.optimizer, step, change.steps) for step in range(STOPPED, change.steps)
        ]
        assert rates(resumed) == pytest.approx(expected, rel=1e-12)
    assert resumed.samples[0] == ordered(resumed, changed.seed)[: len(resumed.samples[0])]
    assert len(resumed.moments) == len(moments) > 0
    for found, before in zip(resumed.moments, moments, strict=True):
        assert torch.equal(found, before)
    assert {each.dtype for each in resumed.run.strategy.module.parameters()} == {torch.float32}
    for key, value in change.groups.items():
        groups = {group[key] for group in resumed.run.optimizer.param_groups if key in group}
        assert groups == ({value, 0.0} if key == "weight_decay" else {value})
    assert change.effect is None or change.effect(first, resumed)


def test_a_length_that_is_already_reached_ends_the_run(tmp_path: Path, tiny: Make, run: Run) -> None:
    warmup = "optimizer.warmup=1"
    run(tiny(warmup), tmp_path, should_stop=StopAfter(STOPPED))
    result = run(tiny(warmup, "steps=3"), tmp_path, allow_changes=("steps",))
    assert (result.status, result.step) == ("finished", STOPPED)
    assert len(metric_values(rows_of(tmp_path), "loss")) == STOPPED


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        ("controllers.rate.patience=3", 0.5),
        ("controllers.rate.factor=0.1", 0.5),
        ("controllers.rate.kind=backoff", 1.0),
        ("controllers.rate.metric=validation/accuracy", 1.0),
        ("controllers.rate.cycle=4", 1.0),
    ],
)
def test_a_controller_of_the_rate_keeps_its_factor_unless_it_is_another_one(
    tiny: Make, change: str, factor: float
) -> None:
    rate = ("controllers.rate.kind=plateau", "optimizer.schedule=constant", "optimizer.warmup=0")
    before, after = tiny(*rate), tiny(*rate, change)
    controllers, resumed = Controllers(before, 12), Controllers(after, 12)
    for step in (1, 2, 3):
        controllers.after_step(StepStats(step, 2.0, None, {"validation/loss": 2.0}))
    assert controllers.learning_rate(48) == 0.5 * before.optimizer.lr
    resumed.load_state(controllers.state(), before.model_dump(mode="json"), 48)
    assert resumed.learning_rate(48) == factor * after.optimizer.lr


def test_another_controller_of_the_batch_keeps_the_size_that_it_has_grown_to(tiny: Make) -> None:
    noise = ("controllers.batch.kind=noise", "controllers.batch.every=1")
    before, after = tiny(*noise), tiny(*noise, "controllers.batch.largest=64", "controllers.batch.rule=none")
    controllers, resumed = Controllers(before, 12), Controllers(after, 12)
    for step in range(1, 6):
        controllers.after_step(StepStats(step, 2.0, (2.0, 1.0)))
    assert controllers.global_batch == 32
    resumed.load_state(controllers.state(), before.model_dump(mode="json"), 80)
    assert (resumed.global_batch, resumed.measures_noise(6)) == (32, True)


@pytest.mark.parametrize(("window", "action"), [(8, "skip"), (12, "go")])
def test_another_guard_compares_with_the_losses_that_are_known(window: int, action: str) -> None:
    guards, resumed = Guards(GuardsConfig()), Guards(GuardsConfig(spike="skip", window=window))
    for loss in (2.0, 2.1, 1.9, 2.0, 2.1):
        guards.check(loss, 1.0)
    resumed.load_state(guards.state())
    assert resumed.check(9.0, 1.0).action == action  # it needs half a window


@pytest.mark.parametrize("name", ["micro_batch", "micro_batch, after a probe"])
def test_a_resumed_run_uses_the_micro_batch_of_its_recipe(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    used: list[int] = []
    real = loop.Stepper.compute_gradients

    def noted(self: Any, *arguments: Any) -> Any:
        used.append(self.micro_batch)
        return real(self, *arguments)

    monkeypatch.setattr(loop.Stepper, "compute_gradients", noted)
    change = CHANGES[name]
    run(tiny(*change.before), tmp_path, should_stop=StopAfter(STOPPED))
    before = used[-1]
    run(tiny(*change.before, *change.overrides), tmp_path)
    assert before != 2
    assert set(used[STOPPED:]) == {2}


def test_the_optimizer_of_a_run_can_never_change(tmp_path: Path, tiny: Make, run: Run) -> None:
    run(tiny(), tmp_path, should_stop=StopAfter(STOPPED))
    for allowed in ("optimizer.name", "optimizer"):
        with pytest.raises(InputError) as caught:
            run(tiny("optimizer.name=muon"), tmp_path, allow_changes=(allowed,))
        (problem,) = caught.value.problems
        assert (problem.where, problem.fix) == ("optimizer.name", "restore it, or start a new run")


def test_a_larger_batch_neither_jumps_in_the_schedule_nor_scales_the_rate(
    tmp_path: Path, tiny: Make, run: Run
) -> None:
    def rates(folder: str, *changes: str) -> list[float]:
        run(tiny(), tmp_path / folder, should_stop=StopAfter(STOPPED))
        run(
            tiny(*changes), tmp_path / folder, should_stop=StopAfter(3), allow_changes=("batch.global_batch",)
        )
        run(tiny(*changes), tmp_path / folder)  # the change is part of its checkpoint
        return [row["lr"] for row in read_rows(tmp_path / folder).rows if row["kind"] == "train"]

    assert rates("changed", "batch.global_batch=32") == pytest.approx(rates("same"), rel=1e-12)


def test_a_larger_batch_of_a_run_in_epochs_sees_the_same_samples(
    tmp_path: Path, tiny: Make, run: Run
) -> None:
    epochs = ("steps=null", "epochs=0.5")
    run(tiny(*epochs), tmp_path, should_stop=StopAfter(STOPPED))
    result = run(tiny(*epochs, "batch.global_batch=32"), tmp_path, allow_changes=("batch.global_batch",))
    rows = [row for row in read_rows(tmp_path).rows if row["kind"] == "train"]
    assert 0.5 <= rows[-1]["epoch"] < 0.6
    assert result.step < rows[0]["steps"]


def test_a_key_that_the_version_of_the_checkpoint_did_not_have_counts_as_its_default(tiny: Make) -> None:
    now = tiny().model_dump(mode="json")
    older = {key: value for key, value in now.items() if key != "controllers"}
    assert completed(older) == now
    assert completed({**older, "removed": 1}) == {**older, "removed": 1}


ELSEWHERE = {
    "optimizer.name": (Path(__file__), "test_the_optimizer_of_a_run_can_never_change"),
    "workload.model.pretrained": (
        ROOT / "tests/training/test_frozen_weights.py",
        "test_a_run_resumes_with_a_copy_of_its_pretrained_model",
    ),
}
"""Tests of the rows that `CHANGES` lacks."""


def test_the_documentation_has_a_row_for_each_tested_change_and_no_others() -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    table = page.partition("### Changes between starts")[2].partition("\n## ")[0]
    rows = {
        key
        for line in table.splitlines()
        if line.startswith("| `")
        for key in re.findall("`(.*?)`", line.split("|")[1])
    }
    assert rows == {*ELSEWHERE, *(key for change in CHANGES.values() for key in change.keys)}
    for file, name in ELSEWHERE.values():
        assert f"def {name}(" in file.read_text()


@pytest.mark.parametrize(
    ("overrides", "fix"),
    [
        (("batch.global_batch=32", "batch.micro_batch=16"), "batch.micro_batch=8, then"),
        (("batch.global_batch=24", "batch.micro_batch=12"), "batch.micro_batch=6, then"),
        (
            ("batch.global_batch=8", "batch.micro_batch=1"),
            "activation_checkpointing=full or strategy=fsdp, then",
        ),
        (
            ("batch.micro_batch=1", "activation_checkpointing=full", "strategy=fsdp"),
            "sharding.cpu_offload=true, then",
        ),
    ],
)
def test_a_first_step_that_does_not_fit_suggests_a_recipe_that_may(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch, overrides: Any, fix: str
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    monkeypatch.setattr(loop.Stepper, "forward", full)
    with pytest.raises(DeviceMemoryError) as caught:
        run(tiny(*overrides), tmp_path)
    first, cause = caught.value.problems
    assert (first.where, first.fix.startswith(fix)) == ("batch.micro_batch", True)
    assert cause.what == "CUDA out of memory. Tried to allocate 2.00 GiB."


def test_a_later_step_without_memory_is_left_to_a_restart(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = loop.Stepper.compute_gradients, []

    def full_later(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(self, *arguments)

    monkeypatch.setattr(loop.Stepper, "compute_gradients", full_later)
    with pytest.raises(torch.OutOfMemoryError):
        run(tiny(), tmp_path)
