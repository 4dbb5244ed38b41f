"""`checkpoint.every: auto`: how often a run saves, why, on all ranks alike, and that no loss depends on it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.training_runs import StopAfter, metric_values, rows_of
from trainfleet.errors import InputError
from trainfleet.training.checkpoint import schedule
from trainfleet.training.checkpoint.schedule import FIRST_STEPS, SaveSchedule, best_interval
from trainfleet.training.recipe.schema import CheckpointConfig, Recipe
from trainfleet.training.trainer.context import RunContext, RunResult

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
SECONDS_PER_HOUR = 3600


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Ranks:
    """The schedules of several ranks, which add up their proposals in each step as the loop does."""

    def __init__(self, clock: Clock, count: int = 3, validation_every: int = 1, **settings: Any) -> None:
        config = CheckpointConfig(every="auto", **settings)
        self.clock, self.step, self.saved = clock, 0, list[int]()
        self.all = [SaveSchedule(config, validation_every, 4, rank, clock) for rank in range(count)]
        self.reasons: list[str] = []

    def run(self, steps: int, step_s: float, stall_s: float, written_s: float) -> None:
        for _ in range(steps):
            self.step, self.clock.now = self.step + 1, self.clock.now + step_s
            total = sum(each.proposal for each in self.all)
            self.reasons += [why for each in self.all if (why := each.agree(total))]
            due = {each.due(self.step) for each in self.all}
            assert len(due) == 1, "the ranks disagree"
            if due == {True}:
                began = self.clock.now
                for each in self.all:
                    self.clock.now = began
                    with each.saving(self.step):
                        self.clock.now += stall_s
                    each.written(written_s)
                self.saved.append(self.step)


@pytest.mark.parametrize(
    ("stall_s", "mtbf_hours", "machines", "written_s", "minutes"),
    [
        (1.0, 6300, 1, 0, 112.2),
        (1.0, 6300, 2048, 0, 2.5),
        (10.0, 6300, 2048, 0, 7.8),
        (1.0, 24, 1, 0, 6.9),
        (0.01, 24, 64, 30.0, 0.5),
    ],
)
def test_the_interval_is_that_of_young_and_not_shorter_than_a_save(
    stall_s: float, mtbf_hours: float, machines: int, written_s: float, minutes: float
) -> None:
    mtbf_s = SECONDS_PER_HOUR * mtbf_hours / machines
    found = best_interval(stall_s, mtbf_s, written_s)
    assert found / 60 == pytest.approx(minutes, abs=0.06)

    def lost(interval: float) -> float:
        return stall_s / interval + interval / (2 * mtbf_s)

    if not written_s:
        assert lost(found) < min(lost(0.9 * found), lost(1.1 * found))
        assert lost(1.25 * found) / lost(found) - 1 < 0.03  # CHANGE


def test_all_ranks_save_after_the_same_steps_and_rank_0_says_why() -> None:
    ranks = Ranks(Clock(), mtbf_hours=24)
    ranks.run(1000, step_s=1.0, stall_s=0.5, written_s=4.0)
    every = round(math.sqrt(2 * 0.5 * 24 * SECONDS_PER_HOUR / 4))
    assert every == 147
    assert ranks.saved[0] == FIRST_STEPS
    assert {later - earlier for earlier, later in itertools.pairwise(ranks.saved)} == {every}
    (reason,) = ranks.reasons
    assert reason == (
        "a checkpoint every 147 steps, about 2.5 minutes: a save stops the training for 0.50 s and is written"
        " after 4.0 s, a step takes 1.00 s, and each of 4 machines fails every 24 hours"
    )
    assert {tuple(each.row().items()) for each in ranks.all} == {(("checkpoint_every", every),)}


def test_a_small_change_of_the_stall_changes_nothing_and_a_large_one_does() -> None:
    ranks = Ranks(Clock(), mtbf_hours=24)
    ranks.run(600, step_s=1.0, stall_s=0.5, written_s=4.0)
    ranks.run(600, step_s=1.0, stall_s=0.6, written_s=4.0)
    assert len(ranks.reasons) == 1
    ranks.run(2000, step_s=1.0, stall_s=4.0, written_s=4.0)
    assert len(ranks.reasons) > 1
    assert ranks.all[0].every == pytest.approx(math.sqrt(2 * 4 * 24 * SECONDS_PER_HOUR / 4), rel=0.25)


def test_the_first_save_which_allocates_memory_does_not_count_later() -> None:
    ranks = Ranks(Clock(), mtbf_hours=24)
    ranks.run(FIRST_STEPS, step_s=1.0, stall_s=50.0, written_s=4.0)
    ranks.run(4000, step_s=1.0, stall_s=0.5, written_s=4.0)
    assert ranks.all[0].every == 147


def test_a_save_that_may_not_have_begun_is_not_measured() -> None:
    clock = Clock()
    one = SaveSchedule(CheckpointConfig(every="auto"), clock=clock)
    clock.now = 20.0
    with one.saving(20, complete=False):
        clock.now += 1e-9
    one.written(1.0)
    assert one.proposal == FIRST_STEPS


@pytest.mark.parametrize("every", [1, 7, 20, 33, 60, 70, 100, 110, 140, 470, 1730])
@pytest.mark.parametrize("validation_every", [1, 25, 100])
def test_validations_have_a_checkpoint_that_can_be_the_best(every: int, validation_every: int) -> None:
    one = SaveSchedule(CheckpointConfig(every="auto"), validation_every)
    one.agree(every)
    saved = [0]
    for step in range(1, 20_000):
        if one.due(step):
            saved.append(step)
            with one.saving(step):
                pass
    gaps = [later - earlier for earlier, later in itertools.pairwise(saved)]
    assert every / 2 <= min(gaps)
    assert max(gaps) <= max(1.5 * every, 1)
    if every <= validation_every:
        assert set(range(validation_every, 20_000, validation_every)) <= set(saved)
    elif validation_every < every / 2:
        assert all(step % validation_every == 0 for step in saved)


def test_a_run_that_chooses_its_interval_reports_it_keeps_it_and_has_the_same_losses(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "FIRST_STEPS", 2)
    monkeypatch.setattr(
        schedule, "best_interval", lambda *_: 1e-9
    )  # measured times differ: save at each step
    auto = tiny("checkpoint.every=auto", "checkpoint.mtbf_hours=24")
    run(auto, tmp_path / "auto")
    run(auto, tmp_path / "parts", should_stop=StopAfter(7))
    with monkeypatch.context() as later:
        later.setattr(SaveSchedule, "written", lambda *_: None)  # nothing new is measured
        run(auto, tmp_path / "parts")
    run(tiny("checkpoint.every=100"), tmp_path / "fixed")
    losses = metric_values(rows_of(tmp_path / "fixed"), "loss")
    assert metric_values(rows_of(tmp_path / "auto"), "loss") == losses
    assert metric_values(rows_of(tmp_path / "parts"), "loss") == losses
    intervals = metric_values(rows_of(tmp_path / "auto"), "checkpoint_every")
    assert (intervals[0], intervals[-1]) == (2, 1)
    assert metric_values(rows_of(tmp_path / "parts"), "checkpoint_every")[7:] == [1] * 5
    events = [row for row in rows_of(tmp_path / "auto") if row["kind"] == "event"]
    assert [row["what"] for row in events] == ["checkpoint_interval"]
    assert "each of 1 machine fails every 24 hours" in events[0]["text"]
    assert "checkpoint_every" not in rows_of(tmp_path / "fixed")[0]


def test_a_failure_rate_without_a_use_is_refused(tiny: Make) -> None:
    with pytest.raises(InputError, match=r"checkpoint\.mtbf_hours: decides nothing, because") as caught:
        tiny("checkpoint.mtbf_hours=24")
    assert caught.value.problems[0].fix == "checkpoint.every=auto, or leave it out"
    with pytest.raises(InputError, match=r"checkpoint\.every"):
        tiny("checkpoint.every=often")
    assert tiny("checkpoint.every=auto", "checkpoint.mtbf_hours=24").checkpoint.every == "auto"


@pytest.mark.parametrize(
    ("world", "local", "machines"), [(1, 1, 1), (8, 8, 1), (16, 8, 2), (17, 8, 3), (3, 1, 3)]
)
def test_machines_are_counted(tmp_path: Path, world: int, local: int, machines: int) -> None:
    assert RunContext(tmp_path, world_size=world, local_world_size=local).machines == machines
