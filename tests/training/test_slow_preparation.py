"""A rank that prepares data, or predicts, for longer than the time-out of the process group does not end the
run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from tests.training.data.test_streamed_run import losses
from tests.training.ranks import start_ranks
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult

TIMEOUT_S, PREPARES_S = 30, 45
SHORT_TIMEOUT = timedelta(seconds=3)


def outlast(rank: int) -> None:
    """As rank 1, take longer than the time-out of the default process group, which is short from now on."""
    dist.set_timeout(SHORT_TIMEOUT)
    time.sleep(2 * rank * SHORT_TIMEOUT.total_seconds())


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


def test_the_last_block_of_a_prediction_may_take_longer_than_the_time_out(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        from trainfleet.training.inference import predict_ranks
        from trainfleet.training.inference.prediction_files import Block
        from trainfleet.training.runtime import process_group

        def make_block(_predictor: Any, number: int, _unit: Any, _request: Any) -> Block:
            outlast(rank)
            return Block(number, b"{}\n", 1, [])

        predictor = SimpleNamespace(path="model", identity="", step=1, check=lambda _: None)
        vars(predict_ranks).update(  # in this process only
            find_source=lambda *_, **__: SimpleNamespace(units=[0, 1], key="", size=1),
            open_predictor=lambda *_, **__: predictor,
            make_block=make_block,
        )
        world = process_group.init_from_env(use_gpu=False)
        job = {"source": "model", "input": "rows.jsonl", "output": str(tmp_path / "out")}
        manifest = predict_ranks.on_ranks(job, world, lambda *_, **__: None)
        assert manifest["rows"] == 2
        os._exit(0)

    assert start_ranks(work, 2) == [0, 0]


def test_a_rank_of_an_evaluation_may_open_the_data_for_longer_than_the_time_out() -> None:
    def work(rank: int) -> None:
        from trainfleet.training import evaluate
        from trainfleet.training.runtime import process_group

        def measured(*_: Any) -> None:
            dist.barrier()
            os._exit(0)

        vars(evaluate).update(_open=lambda _: outlast(rank), _evaluated=measured)  # in this process only
        evaluate.on_ranks({}, process_group.init_from_env(use_gpu=False), lambda *_, **__: None)

    assert start_ranks(work, 2) == [0, 0]
