"""When a run resumes, rank 0 alone reads what grows with the number of ranks, and an error reaches all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.training.ranks import start_ranks
from trainfleet.errors import TrainfleetError
from trainfleet.training.checkpoint import Checkpoints, step_name
from trainfleet.training.checkpoint.files import METADATA, PLAIN
from trainfleet.training.checkpoint.rank_values import read_rank_values
from trainfleet.training.recipe.schema import CheckpointConfig
from trainfleet.training.runs.schema import MARKER
from trainfleet.training.runtime import process_group
from trainfleet.training.stores import Store, open_store

RANKS = 3


def checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(open_store(str(folder)), CheckpointConfig(), lambda *_: None)


def work(rank: int, folder: Path) -> None:
    """Save on every rank, then read the checkpoint as a new start does, and note what was read."""
    process_group.init_from_env(use_gpu=False)
    saving = checkpoints(folder / "c")
    saving.save(1, {"model": {"value": torch.arange(6.0)}}, {"rank": rank}, {}, {})
    assert saving.finish() is not None
    read: list[str] = []
    real = Store.read

    def noted(self: Store, path: str, *where: Any) -> bytes:
        read.append(path.rpartition("/")[2])
        return real(self, path, *where)

    Store.read = noted  # type: ignore[method-assign]  # in this process alone
    loading, value = checkpoints(folder / "c"), torch.zeros(6)
    name = loading.choose()
    assert name == step_name(1)
    assert read_rank_values(loading, name).own == {"rank": rank}
    loading.load(name, {"model": {"value": value}})
    assert value.tolist() == list(range(6))
    (folder / f"{rank}.json").write_text(json.dumps(read))
    if rank == 0:
        (folder / "c" / name / METADATA).unlink()
    try:
        loading.load(name, {"model": {"value": value}})
    except TrainfleetError as error:
        (folder / f"{rank}.error").write_text(str(error))
    process_group.shutdown()


def test_rank_0_alone_reads_what_grows_with_the_number_of_ranks(tmp_path: Path) -> None:
    assert start_ranks(lambda rank: work(rank, tmp_path), RANKS) == [0] * RANKS
    first, *others = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS))
    described = {METADATA, PLAIN, MARKER}
    assert described <= set(first)
    assert first.count(METADATA) == 1
    assert all(described.isdisjoint(each) for each in others)
    assert all(each for each in others), "each rank reads weights"
    errors = {(tmp_path / f"{rank}.error").read_text() for rank in range(RANKS)}
    assert len(errors) == 1, "rank 0's error is that of all ranks"
    assert METADATA in errors.pop()
