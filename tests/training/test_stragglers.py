"""A rank that is slower than the others for several logs is named with its machine, and no other one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.training.training_runs import rows_of
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime.process_group import single_process_group
from trainfleet.training.trainer import stragglers
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.metrics import Throughput
from trainfleet.training.trainer.stragglers import LOGS, StragglerWatch, slow_ranks
from trainfleet.training.trainer.strategies import make_strategy
from trainfleet.training.trainer.strategies.ddp import SAMPLE_INTERVAL, DdpStrategy
from trainfleet.training.workloads import make_workload

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
NAN = math.nan


@pytest.mark.parametrize(
    ("seconds", "step_s", "slow"),
    [
        ([0.1, 0.1, 0.1, 0.1], 1.0, []),
        ([0.1, 0.1, 0.4, 0.1], 1.0, [2]),
        ([0.1, 0.4], 1.0, [1]),
        ([0.1, 0.14, 0.1], 0.2, []),  # less than 1.5 times the median
        ([0.001, 0.001, 0.004], 1.0, []),  # 0.3 % of a step
        ([0.001, 0.001, 0.004], 0.01, [2]),
        ([0.0, 0.0, 0.5, 0.5], 1.0, [2, 3]),
        ([0.5, 0.5, 0.5, 0.0], 1.0, []),  # one that is faster delays nobody
        ([NAN, NAN], 1.0, []),
        ([0.1, NAN, 0.4, 0.1], 1.0, [2]),
        ([0.4, NAN], 1.0, []),
    ],
)
def test_a_slow_rank_is_far_above_the_median_and_delays_a_step(
    seconds: list[float], step_s: float, slow: list[int]
) -> None:
    assert list(slow_ranks(seconds, step_s)) == slow


class Watched:
    """Rank 0's watch over four ranks on two machines. A stand-in for the other ranks: a test says what they
    exchange.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        hosts = ["node-a", "node-a", "node-b", "node-b"]
        monkeypatch.setattr(stragglers, "gather", lambda *_: hosts)
        self.events: list[tuple[str, str]] = []
        context = RunContext(folder, rank=0, world_size=4)
        self.watch = StragglerWatch(context, lambda what, text: self.events.append((what, text)))

    def log(
        self,
        data: Sequence[float],
        backward: Sequence[float],
        monkeypatch: pytest.MonkeyPatch,
        steps: int = 10,
    ) -> Any:
        """A log after steps of one second each."""
        given: list[tuple[float, ...]] = []

        def exchange(own: tuple[float, ...]) -> list[tuple[float, ...]]:
            given.append(own)
            return list(zip(data, backward, strict=True))

        monkeypatch.setattr(self.watch, "_exchange", exchange)
        measured = None if math.isnan(backward[0]) else backward[0]
        row = self.watch.compare(Throughput(compute=steps, data=steps * data[0], steps=steps), measured)
        assert given[0][0] == pytest.approx(data[0])
        return row


EVEN, NONE = (0.2, 0.2, 0.2, 0.2), (NAN, NAN, NAN, NAN)
SLOW_DATA = (0.2, 0.2, 0.6, 0.2)


def test_a_rank_is_reported_once_with_its_machine_and_again_after_it_was_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    for _ in range(LOGS - 1):
        row = watched.log(SLOW_DATA, NONE, monkeypatch)
    assert row == {
        "least_data_wait": pytest.approx(0.2),
        "slowest_data_wait": pytest.approx(0.6),
        "slowest_data_wait_rank": 2,
        "slowest_data_wait_node": "node-b",
    }
    assert watched.events == []
    for _ in range(3 * LOGS):
        watched.log(SLOW_DATA, NONE, monkeypatch)
    text = (
        "rank 2 on node-b waits for data for 0.6 s in each step, 3.0 times the median of 0.2 s,"
        " for at least 3 logs: all ranks wait for it"
    )
    assert watched.events == [("straggler", text)]
    watched.log(EVEN, NONE, monkeypatch)
    for _ in range(LOGS):
        watched.log(SLOW_DATA, NONE, monkeypatch)
    assert len(watched.events) == 1, "one fast interval is not a recovery"
    for values in (EVEN, SLOW_DATA):
        for _ in range(LOGS):
            watched.log(values, NONE, monkeypatch)
    assert watched.events == [("straggler", text)] * 2


def test_short_logs_are_reported_after_half_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch)
    for number in range(1, 31):
        assert not watched.events, number
        watched.log(SLOW_DATA, NONE, monkeypatch, steps=1)
    assert len(watched.events) == 1


def test_intervals_that_are_slow_now_and_then_are_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    for number in range(4 * LOGS):
        watched.log(EVEN if number % LOGS == LOGS - 1 else SLOW_DATA, NONE, monkeypatch)
    assert watched.events == []


def test_a_slow_backward_pass_counts_once_for_each_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    for number in range(LOGS):
        backward = (0.3 + number / 1e6, 0.3, 0.3, 0.9)
        row = watched.log(EVEN, backward, monkeypatch)
        assert row["slowest_backward_seconds"] == 0.9
        assert not watched.events or number == LOGS - 1
        for _ in range(LOGS):  # DDP has measured nothing new
            watched.log(EVEN, NONE, monkeypatch)
    ((what, text),) = watched.events
    assert what == "straggler"
    assert text.startswith("rank 3 on node-b computes its backward pass for 0.9 s in each step, 3.0 times")


def test_an_old_measurement_is_not_exchanged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, given = Watched(tmp_path, monkeypatch), []

    def exchange(own: tuple[float, ...]) -> list[tuple[float, ...]]:
        given.append(own[1])
        return [own] * 4

    monkeypatch.setattr(watched.watch, "_exchange", exchange)
    for measured in (0.3, 0.3, 0.4, None):
        watched.watch.compare(Throughput(compute=1.0, steps=1), measured)
    assert [None if math.isnan(each) else each for each in given] == [0.3, None, 0.4, None]


def test_one_rank_has_nothing_to_compare(tmp_path: Path, tiny: Make, run: Run) -> None:
    run(tiny("steps=6"), tmp_path)
    assert not any("slowest" in key for row in rows_of(tmp_path) for key in row)
    assert StragglerWatch(RunContext(tmp_path), lambda *_: None).compare(Throughput(), None) == {}


def test_times_are_exchanged_through_the_process_group(tmp_path: Path) -> None:
    """With one rank, whose group is real."""
    with single_process_group():
        watch = StragglerWatch(RunContext(tmp_path), lambda *_: None)
        assert watch._exchange((0.25, 0.5)) == [[0.25, 0.5]]
        ((data, backward),) = watch._exchange((1e-9, NAN))
        assert (data, math.isnan(backward)) == (1e-9, True)


def test_ddp_measures_its_backward_pass(tmp_path: Path, tiny: Make, cache: Path) -> None:
    recipe = tiny()
    workload = make_workload(recipe, cache)
    with single_process_group():
        strategy = DdpStrategy(recipe, workload.build_model, RunContext(tmp_path, world_size=2))
        assert strategy.backward_seconds() is None
        for _ in range(SAMPLE_INTERVAL + 2):
            workload.forward_loss(strategy.parallel, workload.batch("train", [0, 1])).loss.backward()
        seconds = strategy.backward_seconds()
        assert seconds is not None
        assert 0 < seconds < 60
    assert DdpStrategy(recipe, workload.build_model, RunContext(tmp_path)).backward_seconds() is None


@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
def test_sharded_ranks_are_compared_by_their_wait_for_data_only(
    tmp_path: Path, tiny: Make, cache: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Each of their passes waits for the shards of other ranks, as docs/training.md says."""
    recipe = tiny(f"strategy={strategy}")
    workload = make_workload(recipe, cache)
    with single_process_group():
        made = make_strategy(recipe, workload.build_model, RunContext(tmp_path))
        for _ in range(SAMPLE_INTERVAL + 2):  # as many as DDP needs
            workload.forward_loss(made.parallel, workload.batch("train", [0, 1])).loss.backward()
        measured = made.backward_seconds()
    row = Watched(tmp_path, monkeypatch).log(
        SLOW_DATA, [NAN if measured is None else measured] * 4, monkeypatch
    )
    assert (row["slowest_data_wait_rank"], "slowest_backward_seconds" in row) == (2, False)
    page = (ROOT / "docs" / "training.md").read_text()
    assert "and with fsdp and hsdp the computation, because every pass waits for the shards" in page
