"""Two ranks save after the same steps, compare their times, and share a LoRA checkpoint."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.checkpoint_reader import tensors_of
from tests.training.training_runs import TOLERANCE, metric_values, rows_of
from tests.training.workloads import models
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.trainer.stragglers import LOGS

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
RunRanks = Callable[..., list[int]]
TWO = ("scaling.workers=2", "steps=12", "batch.micro_batch=8")


@pytest.mark.deep
def test_ranks_that_measure_differently_save_after_the_same_steps(
    tmp_path: Path, tiny: Make, run: Run, run_ranks: RunRanks
) -> None:
    def before(rank: int) -> None:
        """Each rank would choose another interval, and the first save comes early."""
        from trainfleet.training.checkpoint import schedule

        schedule.FIRST_STEPS = 2
        schedule.best_interval = lambda *_: 1e-9 if rank == 0 else 1e9

    shape = ("workload.model.dropout=0.0", "checkpoint.keep_last=12", "validation.every=12")
    assert run_ranks(tiny(*TWO, *shape, "checkpoint.every=auto"), tmp_path / "two", 2, before) == [0, 0]
    run(tiny(*shape), tmp_path / "one")
    assert metric_values(rows_of(tmp_path / "two"), "loss") == pytest.approx(
        metric_values(rows_of(tmp_path / "one"), "loss"), rel=TOLERANCE
    )
    assert metric_values(rows_of(tmp_path / "two"), "checkpoint_every")[-1] == 1
    saved = sorted(int(path.name[5:]) for path in (tmp_path / "two" / "checkpoints").glob("step-*[0-9]"))
    assert saved[0] == 2
    assert len(saved) > 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_rank_that_waits_for_its_data_is_named(
    tmp_path: Path, tiny: Make, run_ranks: RunRanks, strategy: str
) -> None:
    def before(rank: int) -> None:
        """Rank 1 reports a longer wait than it has: nothing sleeps."""
        from trainfleet.training.trainer.step import Stepper

        real = Stepper.batch

        def slow(self: Any, *arguments: Any) -> Any:
            found = real(self, *arguments)
            self.throughput.data += 1000.0 * rank
            self.throughput.compute += 2000.0
            return found

        Stepper.batch = slow  # type: ignore[method-assign]

    assert run_ranks(tiny(*TWO, f"strategy={strategy}"), tmp_path, 2, before) == [0, 0]
    rows = rows_of(tmp_path)
    (event,) = [row for row in rows if row["kind"] == "event"]
    assert (event["what"], event["step"]) == ("straggler", LOGS)
    assert event["text"].startswith(f"rank 1 on {platform.node()} waits for data for")
    train = [row for row in rows if row["kind"] == "train"]
    assert all(row["slowest_data_wait"] > 10 * row["data_wait"] for row in train)
    assert {(row["slowest_data_wait_rank"], row["slowest_data_wait_node"]) for row in train} == {
        (1, platform.node())
    }
    assert all(row["least_data_wait"] == pytest.approx(row["data_wait"]) for row in train)
    assert any("slowest_backward_seconds" in row for row in train) == (strategy == "ddp")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.deep
def test_a_lora_run_of_two_ranks_resumes_on_one(
    tmp_path: Path, tiny: Make, run: Run, run_ranks: RunRanks, strategy: str
) -> None:
    lora = (
        f"workload.model.pretrained={models.causal(tmp_path / 'base')}",
        "workload.model.lora={rank: 2, targets: [q_proj, v_proj]}",
        "workload.data.tokens=model",
        "workload.model.context=16",
        "optimizer.schedule=constant",
        "optimizer.warmup=2",
        f"strategy={strategy}",
    )
    run(tiny(*lora, "steps=8"), tmp_path / "one")
    assert run_ranks(
        tiny(*lora, "steps=4", "scaling.workers=2", "batch.micro_batch=8"), tmp_path / "two", 2
    ) == [0, 0]
    newest = max((tmp_path / "two" / "checkpoints").iterdir())
    weights = {name for name in tensors_of(newest) if name.startswith("model.")}
    assert weights
    assert all("lora_" in name for name in weights)
    assert run(tiny(*lora, "steps=8"), tmp_path / "two", allow_changes=("steps",)).resumed_from == 4
    assert metric_values(rows_of(tmp_path / "two"), "loss") == pytest.approx(
        metric_values(rows_of(tmp_path / "one"), "loss"), rel=TOLERANCE
    )
