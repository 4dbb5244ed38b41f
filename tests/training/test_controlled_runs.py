"""Controllers and guards in real runs: controllers improve the result, and a kill changes no decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.reader import read_rows
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.trainer.loop import NotANumberError
from trainfleet.training.workloads.lm.workload import LanguageModel

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]

LONG = (
    "steps=150",
    "optimizer.schedule=constant",
    "validation.every=10",
    "log.every=10",
    "checkpoint.every=1000",
)
HOT = (*LONG, "optimizer.lr=0.2", "optimizer.grad_clip=1000", "optimizer.warmup=100")
SMALL = (*LONG, "steps=400", "optimizer.lr=0.03", "batch.global_batch=4", "batch.micro_batch=2")
BETTER: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "plateau": (
        (*LONG, "optimizer.lr=0.03"),
        ("rate.kind=plateau", "rate.patience=1", "rate.threshold=0.01"),
    ),
    "restarts": ((*LONG, "optimizer.lr=0.03"), ("rate.kind=restarts", "rate.cycle=50", "rate.stretch=1")),
    "backoff": (
        HOT,
        ("rate.kind=backoff", "rate.window=20", "rate.sigmas=3", "rate.recover=100", "rate.factor=0.3"),
    ),
    "noise": (SMALL, ("batch.kind=noise", "batch.largest=64", "batch.rule=none", "batch.every=2")),
}
"""By controller: a recipe that trains badly without it, and the controller's keys. Both runs use the same
number of samples.
"""


@pytest.mark.deep
@pytest.mark.parametrize("name", BETTER)
def test_a_controller_improves_a_run(tmp_path: Path, tiny: Make, run: Run, name: str) -> None:
    recipe, controller = BETTER[name]
    without = run(tiny(*recipe), tmp_path / "without")
    controlled = run(tiny(*recipe, *(f"controllers.{each}" for each in controller)), tmp_path / "with")
    decisions = [row for row in read_rows(tmp_path / "with").rows if row["kind"] == "decision"]
    assert decisions
    assert all(row["why"] and row["old"] != row["new"] for row in decisions)
    assert controlled.metrics["test/loss"] < without.metrics["test/loss"] - 0.01


EVERYTHING = (
    "steps=60",
    "optimizer.lr=0.03",
    "batch.global_batch=2",
    "batch.micro_batch=1",
    "optimizer.schedule=constant",
    "checkpoint.every=7",
    "validation.every=3",
    "controllers.rate.kind=plateau",
    "controllers.rate.patience=1",
    "controllers.rate.threshold=0.1",
    "controllers.batch.kind=noise",
    "controllers.batch.every=1",
    "controllers.batch.largest=256",
    "guards.spike=skip",
)


def results(run_dir: Path) -> list[dict[str, Any]]:
    clocked = ("seconds", "per_second", "data_wait", "communication", "mfu")
    return [
        {name: value for name, value in row.items() if not name.endswith(clocked)}
        for row in read_rows(run_dir).rows
    ]


class KilledError(Exception):
    pass


@pytest.mark.deep
@pytest.mark.parametrize("step", [6, 16, 33])
def test_a_killed_run_makes_the_same_decisions_after_its_resume(
    tmp_path: Path, tiny: Make, run: Run, step: int
) -> None:
    recipe = tiny(*EVERYTHING)
    run(recipe, tmp_path / "whole")
    whole = results(tmp_path / "whole")
    assert {"learning rate factor", "global batch"} == {
        row["what"] for row in whole if row["kind"] == "decision"
    }

    def kill(done: int, total: int) -> None:
        if done == step:
            raise KilledError

    with pytest.raises(KilledError):
        run(recipe, tmp_path / "cut", on_step=kill)
    run(recipe, tmp_path / "cut")
    assert results(tmp_path / "cut") == whole


def scale_losses(monkeypatch: pytest.MonkeyPatch, bad: Callable[[int], float]) -> None:
    """Multiply the loss of the n-th training batch by `bad(n)`. A batch is identified by its samples, so it
    stays bad however often it is read.
    """
    outcome, batch = LanguageModel.forward_loss, LanguageModel.batch
    numbers: dict[tuple[int, ...], int] = {}

    def read(self: LanguageModel, split: Any, indices: Sequence[int]) -> Any:
        factor = bad(numbers.setdefault(tuple(indices), len(numbers))) if split == "train" else 1.0
        return {**batch(self, split, indices), "factor": torch.full((len(indices),), factor)}

    def scaled_loss(self: LanguageModel, model: Any, inputs: Any) -> Any:
        found = outcome(self, model, inputs)
        return replace(found, loss=found.loss * inputs["factor"][0])

    monkeypatch.setattr(LanguageModel, "batch", read)
    monkeypatch.setattr(LanguageModel, "forward_loss", scaled_loss)


PLAIN = ("batch.micro_batch=16", "checkpoint.every=2")


def test_a_nan_gradient_is_skipped_and_recorded(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_losses(monkeypatch, lambda number: float("nan") if number == 6 else 1.0)
    result = run(tiny(*PLAIN, "guards.nan=skip"), tmp_path)
    events = [row for row in read_rows(tmp_path).rows if row["kind"] == "event"]
    assert (result.status, [row["what"] for row in events]) == ("finished", ["skip"])
    assert all(
        torch.isfinite(torch.tensor(row["loss"]))
        for row in read_rows(tmp_path).rows
        if row["kind"] == "train"
    )


def test_a_loss_spike_rolls_back_to_the_checkpoint_and_skips_the_samples(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_losses(monkeypatch, lambda number: 50.0 if number == 8 else 1.0)
    result = run(tiny(*PLAIN, "steps=20", "guards.spike=roll_back", "guards.window=6"), tmp_path)
    rows = read_rows(tmp_path).rows
    (event,) = [row for row in rows if row["kind"] == "event"]
    steps = [row["step"] for row in rows if row["kind"] == "train"]
    assert event["what"] == "roll_back"
    assert steps == list(range(1, result.step + 1))
    assert 0 < 20 - result.step <= 3  # the samples of the discarded steps are consumed
    assert max(row["loss"] for row in rows if row["kind"] == "train") < 10


def test_a_guard_that_stops_the_run_names_the_last_valid_checkpoint(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_losses(monkeypatch, lambda number: 50.0 if number == 8 else 1.0)
    with pytest.raises(NotANumberError, match=r"stopped at step \d+: the loss spiked") as caught:
        run(tiny(*PLAIN, "guards.spike=stop", "guards.window=6"), tmp_path)
    assert "step-0000000" in str(caught.value)


def test_a_probed_micro_batch_is_kept_after_a_resume(tmp_path: Path, tiny: Make, run: Run) -> None:
    recipe = tiny("controllers.micro_batch=probe", "batch.micro_batch=1", "checkpoint.every=1")
    run(recipe, tmp_path, should_stop=lambda: True)
    run(recipe, tmp_path)
    (decision,) = [row for row in read_rows(tmp_path).rows if row["kind"] == "decision"]
    assert (decision["what"], decision["old"]) == ("micro batch", 1)
    assert decision["new"] in (1, 2, 4, 8, 16)


@pytest.mark.deep
def test_two_ranks_make_the_same_decisions(
    tmp_path: Path, tiny: Make, run_ranks: Callable[..., list[int]]
) -> None:
    recipe = tiny(*EVERYTHING, "scaling.workers=2", "controllers.micro_batch=probe")
    assert run_ranks(recipe, tmp_path, 2) == [0, 0]
    assert {row["what"] for row in read_rows(tmp_path).rows if row["kind"] == "decision"} >= {
        "global batch",
        "micro batch",
    }
