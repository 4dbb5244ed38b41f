"""Runs whose batches are built ahead in threads train as those whose step loop builds them, bit for bit."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_loop import results
from tests.training.training_runs import StopAfter, train_all
from trainfleet.training.data import make_order
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.trainer.controllers import batch
from trainfleet.training.trainer.step import Stepper
from trainfleet.training.workloads import make_workload
from trainfleet.training.workloads.lm.workload import LanguageModel

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
INLINE, ONE, THREE = (f"data_loading.workers={count}" for count in (0, 1, 3))
SHORT = ("steps=8", "validation.samples=16")
LIMIT_S = 60


@pytest.fixture
def loading_threads() -> Callable[[], list[str]]:
    """The loading threads that began in this test."""
    earlier = set(threading.enumerate())
    return lambda: [
        each.name for each in set(threading.enumerate()) - earlier if each.name.startswith("batches-")
    ]


def test_a_run_is_equal_with_any_number_of_threads_and_after_a_resume(
    tmp_path: Path,
    tiny: Make,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    loading_threads: Callable[[], list[str]],
) -> None:
    """The model has dropout, which draws from the process's generator while batches are built."""
    used: set[str] = set()
    together: list[threading.Barrier] = []
    real = LanguageModel.batch

    def noted(self: Any, *arguments: Any) -> Any:
        thread = threading.current_thread().name
        if together and thread.startswith("batches-") and thread not in used:
            used.add(thread)
            together[0].wait(LIMIT_S)  # or the first thread may build every batch before the others begin
        used.add(thread)
        return real(self, *arguments)

    run(tiny(*SHORT, INLINE), tmp_path / "inline")
    monkeypatch.setattr(LanguageModel, "batch", noted)
    run(tiny(*SHORT, ONE), tmp_path / "one")
    assert used == {"MainThread", "batches-0"}
    used.clear()
    together.append(threading.Barrier(3))
    run(tiny(*SHORT, THREE), tmp_path / "three", should_stop=StopAfter(3))
    assert used == {"MainThread", "batches-0", "batches-1", "batches-2"}
    assert not loading_threads()
    together.clear()
    run(tiny(*SHORT, ONE), tmp_path / "three")
    for name in ("one", "three"):
        assert results(tmp_path / name) == results(tmp_path / "inline"), name
    assert not loading_threads()


@pytest.mark.deep
def test_two_ranks_train_the_same_with_threads_and_after_a_resume(
    tmp_path: Path, tiny: Make, cache: Path
) -> None:
    two = (*SHORT, "scaling.workers=2", "batch.micro_batch=4", "checkpoint.every=8")
    recipes = {name: tiny(*two, each) for name, each in (("inline", INLINE), ("three", THREE))}
    train_all(recipes, tmp_path, cache, 2, stop_first=3)
    assert results(tmp_path / "three") == results(tmp_path / "inline")
    assert {row["loss"] for row in results(tmp_path / "three") if row["kind"] == "train"}


def test_a_roll_back_and_a_growing_batch_discard_what_was_built(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Stepper.forward
    guarded = ("guards.nan=roll_back", "controllers.batch.kind=noise", "controllers.batch.every=1")
    shape = ("batch.global_batch=2", "batch.micro_batch=1", "controllers.batch.largest=16")

    def once_nan(passes: list[int]) -> Callable[..., Any]:
        def forward(self: Any, *arguments: Any) -> Any:
            output = real(self, *arguments)
            passes.append(1)
            return replace(output, loss=output.loss * math.nan) if len(passes) == 20 else output

        return forward

    monkeypatch.setattr(batch, "MIN_MEASUREMENTS", 3)
    monkeypatch.setattr(batch.NoiseScale, "value", lambda _: math.inf)
    for name, workers in (("inline", INLINE), ("three", THREE)):
        monkeypatch.setattr(Stepper, "forward", once_nan([]))
        course = ("steps=16", "validation.every=100", "validation.samples=2", "checkpoint.every=2")
        run(tiny(*course, *guarded, *shape, workers), tmp_path / name)
    rows = results(tmp_path / "inline")
    assert {"roll_back", "global batch"} <= {row.get("what") for row in rows}
    assert results(tmp_path / "three") == rows


def test_the_next_batch_is_built_while_a_step_computes(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step waits, before it changes the weights, until the batch of the next one is being built."""
    began = {step: threading.Event() for step in range(1, 10)}
    building, computing = LanguageModel.batch, Stepper.compute_gradients
    order: list[int] = []

    def noted(self: Any, split: str, indices: Any) -> Any:
        if split == "train":
            order.append(len(order) + 1)
            began[len(order)].set()
        return building(self, split, indices)

    def compute(self: Any, *arguments: Any) -> Any:
        result = computing(self, *arguments)
        steps.append(1)
        if len(steps) < 4:
            assert began[len(steps) + 1].wait(LIMIT_S), "the next batch waits for the end of this step"
        return result

    steps: list[int] = []
    monkeypatch.setattr(LanguageModel, "batch", noted)
    monkeypatch.setattr(Stepper, "compute_gradients", compute)
    course = (
        "steps=4",
        "optimizer.warmup=1",
        "validation.every=4",
        "validation.samples=2",
        "batch.micro_batch=16",
    )
    run(tiny(*course, "batch.global_batch=16", ONE), tmp_path)
    assert order == [1, 2, 3, 4]


@pytest.mark.parametrize("workers", [INLINE, THREE])
def test_an_unreadable_sample_ends_the_run_at_its_step(
    tmp_path: Path,
    tiny: Make,
    run: Run,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: str,
    loading_threads: Callable[[], list[str]],
) -> None:
    recipe = tiny("steps=6", "batch.global_batch=8", "batch.micro_batch=8", "validation.every=100", workers)
    bad = make_order(recipe, workload := make_workload(recipe, cache)).indices(3 * 8 + 5, 1)
    real, steps = type(workload).batch, list[int]()

    def broken(self: Any, split: str, indices: Any) -> Any:
        if split == "train" and bad[0] in indices:
            raise ValueError(f"sample {bad[0]} cannot be decoded")
        return real(self, split, indices)

    monkeypatch.setattr(type(workload), "batch", broken)
    with pytest.raises(ValueError, match=f"^sample {bad[0]} cannot be decoded$"):
        run(recipe, tmp_path, on_step=lambda step, _: steps.append(step))
    assert steps == [1, 2, 3]
    assert not loading_threads()
