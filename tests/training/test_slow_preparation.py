"""A rank that prepares data for longer than the time-out of the process group does not end the run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.data.test_streamed_run import losses
from tests.training.ranks import start_ranks
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult

TIMEOUT_S, PREPARES_S = 30, 45


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_preparation_may_take_longer_than_the_time_out_of_collectives(
    strategy: str, tmp_path: Path, cache: Path, tiny: Callable[..., Recipe], run: Callable[..., RunResult]
) -> None:
    recipe = tiny(f"strategy={strategy}", "steps=2", "optimizer.warmup=1", "validation.every=2")
    run(recipe, tmp_path / "alone")  # prepares the data, so that only the pause below is slow

    def work(rank: int) -> None:
        from trainfleet.training.runtime import process_group
        from trainfleet.training.trainer import loop
        from trainfleet.training.trainer.context import RunContext

        make_workload = vars(loop)["make_workload"]

        def slow(*arguments: Any) -> Any:
            if rank == 0:
                time.sleep(PREPARES_S)
            return make_workload(*arguments)

        vars(loop)["make_workload"] = slow  # in this process only
        world = process_group.init_from_env(use_gpu=False, timeout_s=TIMEOUT_S)
        loop.train(recipe, RunContext(tmp_path / "two", rank, world.world_size, cache=cache))
        process_group.shutdown()
        os._exit(0)

    began = time.monotonic()
    assert start_ranks(work, 2, 300) == [0, 0]
    assert time.monotonic() - began > PREPARES_S
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "alone"), rel=1e-4)


def test_ranks_wait_for_the_last_one_and_stop_waiting_for_one_that_died() -> None:
    def work(rank: int) -> None:
        from trainfleet.training.runtime import process_group
        from trainfleet.training.runtime.collectives import after_all

        process_group.init_from_env(use_gpu=False, timeout_s=TIMEOUT_S)

        def finish() -> float:
            time.sleep(2 * rank)
            return time.time()

        ended = after_all(finish)
        assert time.time() - ended >= 2 * (1 - rank) - 0.5
        try:
            after_all(lambda: os._exit(0) if rank == 1 else None)
        except RuntimeError:
            os._exit(0)  # the connection to rank 1 is closed
        os._exit(1)

    began = time.monotonic()
    assert start_ranks(work, 2, 120) == [0, 0]
    assert time.monotonic() - began < 110
