"""A checkpoint of any number of ranks and any strategy resumes with any other, with the same samples and
losses.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.checkpoint_reader import tensors_of
from tests.training.ranks import start_ranks
from tests.training.test_loop import kill_at_failpoint, losses, results
from tests.training.training_runs import StopAfter
from trainfleet.training.checkpoint import Checkpoints, step_name
from trainfleet.training.checkpoint.rank_values import read_rank_values
from trainfleet.training.recipe.schema import CheckpointConfig, Recipe
from trainfleet.training.runtime import process_group
from trainfleet.training.stores import open_store
from trainfleet.training.trainer.context import RunResult

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
RunRanks = Callable[..., list[int]]

LEGS = {
    "2 to 1 to 3 to 2 ranks": [("ddp", 2), ("ddp", 1), ("ddp", 3), ("ddp", 2)],
    "ddp to fsdp to hsdp to ddp": [("ddp", 2), ("fsdp", 2), ("hsdp", 2), ("ddp", 1)],
    "fsdp on 2 to 1 to 3 to 2 ranks": [("fsdp", 2), ("fsdp", 1), ("fsdp", 3), ("fsdp", 2)],
    "muon on 2 to 1 to 3 ranks": [("ddp", 2), ("ddp", 1), ("ddp", 3)],
    "muon, ddp to fsdp to hsdp to ddp": [("ddp", 2), ("fsdp", 3), ("hsdp", 2), ("ddp", 1)],
    "averaged, fsdp to ddp to fsdp": [("fsdp", 2), ("ddp", 1), ("fsdp", 3)],
}


OVERRIDES = {
    "muon on 2 to 1 to 3 ranks": ("optimizer.name=muon",),
    "muon, ddp to fsdp to hsdp to ddp": ("optimizer.name=muon",),
    "averaged, fsdp to ddp to fsdp": ("ema.decay=0.8",),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", LEGS)
def test_a_change_of_ranks_or_strategy_does_not_change_the_losses(
    tmp_path: Path, tiny: Make, run: Run, run_ranks: RunRanks, name: str
) -> None:
    given, legs = OVERRIDES.get(name, ()), LEGS[name]
    run(tiny(*given), tmp_path / "whole")
    for number, (strategy, ranks) in enumerate(legs):
        recipe = tiny(f"strategy={strategy}", *given)
        end = {} if number == len(legs) - 1 else {"should_stop": StopAfter(3)}
        assert run_ranks(recipe, tmp_path / "moved", ranks, **end) == [0] * ranks
    assert len(losses(tmp_path / "moved")) == 12
    # Muon orthogonalises in bf16 (torch/optim/_muon.py), so the last bits of a gradient change an update by 0.4 %.
    rel, atol = (1e-3, 5e-3) if name.startswith("muon") else (1e-4, 1e-4)
    assert losses(tmp_path / "moved") == pytest.approx(losses(tmp_path / "whole"), rel=rel)
    whole, moved = (
        tensors_of(tmp_path / each / "checkpoints" / step_name(12)) for each in ("whole", "moved")
    )
    assert whole.keys() == moved.keys()
    for key, value in whole.items():
        torch.testing.assert_close(moved[key], value, rtol=1e-3, atol=atol)


def spread(full: torch.Tensor, strategy: str, ranks: int) -> torch.Tensor:
    """A tensor as a strategy stores it on each rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    match strategy:
        case "copies":
            return full.clone()
        case "rows":
            return distribute_tensor(full, init_device_mesh("cpu", (ranks,)), [Shard(0)])
        case "columns":
            return distribute_tensor(full, init_device_mesh("cpu", (ranks,)), [Shard(1)])
        case _:
            return distribute_tensor(
                full,
                init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("copy", "shard")),
                [Replicate(), Shard(0)],
            )


WAYS = [("copies", 2), ("rows", 3), ("columns", 2), ("both", 4)]


@pytest.mark.deep
def test_shards_are_written_once_and_loaded_as_any_other_shards(tmp_path: Path) -> None:
    full = torch.arange(7 * 50_000, dtype=torch.float32).reshape(7, 50_000)

    def checkpoints() -> Checkpoints:
        return Checkpoints(open_store(str(tmp_path)), CheckpointConfig(keep_last=9), lambda *_: None)

    for step, (way, ranks) in enumerate(WAYS):

        def work(rank: int, step: int = step, way: str = way, ranks: int = ranks) -> None:
            process_group.init_from_env(use_gpu=False)
            kept = checkpoints()
            value = spread(full if step == 0 else torch.zeros_like(full), way, ranks)
            if step:
                before = kept.choose()
                assert before == step_name(step - 1)
                kept.load(before, {"model": {"value": value}})
                values, wrote = read_rank_values(kept, before), WAYS[step - 1][1]
                assert (values.written_by, values.own) == (wrote, None), "another number of ranks"
                assert values.ranks == ([] if rank else [{"rank": each} for each in range(wrote)])
            kept.save(step, {"model": {"value": value}}, {"rank": rank}, {}, {})
            assert kept.finish() is not None
            assert read_rank_values(kept, step_name(step)).own == {"rank": rank}
            process_group.shutdown()

        assert start_ranks(work, ranks) == [0] * ranks
        folder = tmp_path / step_name(step)
        assert torch.equal(tensors_of(folder)["model.value"], full), way
        written = sum(path.stat().st_size for path in folder.iterdir())
        assert written < full.nbytes * 1.05
        assert checkpoints().read(step_name(step))["ranks"] == [{"rank": rank} for rank in range(ranks)]


@pytest.mark.deep
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("before-marker:8", id="before the marker"),
        *("in-step:7", "staged:4", "partly-written:8", "in-save:8", "in-purge:2"),
    ],
)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_killed_at_any_point_resume_exactly(
    tmp_path: Path, tiny: Make, run_ranks: RunRanks, strategy: str, point: str
) -> None:
    recipe = tiny(
        "scaling.workers=2",
        f"strategy={strategy}",
        "workload.model.dropout=0.1",
        "log.every=3",
        "checkpoint.every=2",
    )
    assert run_ranks(recipe, tmp_path / "whole", 2) == [0, 0]

    def before(_: int) -> Any:
        kill_at_failpoint(point)

    assert -signal.SIGKILL in run_ranks(recipe, tmp_path / "killed", 2, before=before)
    assert run_ranks(recipe, tmp_path / "killed", 2) == [0, 0]
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    whole, killed = (
        tensors_of(tmp_path / each / "checkpoints" / step_name(12)) for each in ("whole", "killed")
    )
    assert all(torch.equal(killed[key], value) for key, value in whole.items())
