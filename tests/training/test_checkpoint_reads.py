"""When a run resumes, each file is read once, rank 0 alone reads what grows with the number of ranks, and an
error reaches all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.training.ranks import start_ranks
from trainfleet.errors import TrainfleetError
from trainfleet.training.checkpoint import CheckpointError, Checkpoints, step_name
from trainfleet.training.checkpoint import checkpoints as checkpoint_module
from trainfleet.training.checkpoint.files import METADATA, PLAIN
from trainfleet.training.checkpoint.rank_values import read_rank_values
from trainfleet.training.recipe.schema import CheckpointConfig
from trainfleet.training.runs.schema import MARKER
from trainfleet.training.runtime import process_group
from trainfleet.training.stores import Store, open_store
from trainfleet.training.stores.folder import FolderBackend

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

    def noted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Store, path: str, *more: Any) -> Any:
            read.append(path.rpartition("/")[2])
            return real(self, path, *more)

        return call

    # In this process alone.
    Store.read, Store.hash = noted(Store.read), noted(Store.hash)  # type: ignore[method-assign]
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


class CountedReads:
    """The bytes that this process reads of each file below a folder, in any way."""

    def __init__(self) -> None:
        self.bytes = Counter[str]()
        read, chunks = FolderBackend.read, FolderBackend.chunks

        def counted(backend: FolderBackend, path: str, offset: int, length: int | None) -> bytes:
            data = read(backend, path, offset, length)
            self.bytes[Path(path).name] += len(data)
            return data

        def counted_chunks(backend: FolderBackend, path: str) -> Iterator[bytes]:
            for data in chunks(backend, path):
                self.bytes[Path(path).name] += len(data)
                yield data

        self._patches = (
            mock.patch.object(FolderBackend, "read", counted),
            mock.patch.object(FolderBackend, "chunks", counted_chunks),
        )

    def __enter__(self) -> Counter[str]:
        for each in self._patches:
            each.start()
        return self.bytes

    def __exit__(self, *_: Any) -> None:
        for each in self._patches:
            each.stop()


def restore(folder: Path, value: torch.Tensor) -> Counter[str]:
    """Choose the newest checkpoint and load all of it; returns what was read."""
    with CountedReads() as read:
        loading = checkpoints(folder)
        name = loading.choose()
        assert name is not None
        assert read_rank_values(loading, name).written_by
        loading.load(name, {"model": {"value": value}})
    read.pop(MARKER)
    return read


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sharded", [True, False], ids=["sharded", "replicated"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_restore_reads_each_file_once(tmp_path: Path, ranks: int, sharded: bool) -> None:
    """A rank reads what it verifies and what it loads; of shards, both are the same files."""
    whole = torch.arange(200_000.0)

    def each_rank(rank: int) -> None:
        process_group.init_from_env(use_gpu=False)
        mesh = init_device_mesh("cpu", (ranks,))

        def placed(value: torch.Tensor) -> torch.Tensor:
            return distribute_tensor(value, mesh, [Shard(0)]) if sharded else value.clone()

        saving = checkpoints(tmp_path / "c")
        saving.save(1, {"model": {"value": placed(whole), "other": placed(whole)}}, {"rank": rank}, {}, {})
        assert saving.finish() is not None
        value = placed(torch.zeros_like(whole))
        other = placed(torch.zeros_like(whole))
        with CountedReads() as read:
            loading = checkpoints(tmp_path / "c")
            name = loading.choose()
            assert name == step_name(1)
            read_rank_values(loading, name)
            loading.load(name, {"model": {"value": value, "other": other}})
        for each in (value, other):
            assert torch.equal(each.full_tensor() if isinstance(each, DTensor) else each, whole)
        (tmp_path / f"{rank}.json").write_text(json.dumps(read))
        process_group.shutdown()

    assert start_ranks(each_rank, ranks) == [0] * ranks
    sizes = {each.name: each.stat().st_size for each in (tmp_path / "c" / step_name(1)).iterdir()}
    del sizes[MARKER]
    assert len(sizes) == ranks + 2
    read = [Counter(json.loads((tmp_path / f"{rank}.json").read_text())) for rank in range(ranks)]
    for each in read:
        del each[MARKER]
        assert all(count <= sizes[file] * 1.01 for file, count in each.items()), "no file twice by one rank"
    if sharded or ranks == 1:
        assert sum(read, Counter()) == sizes


def test_what_was_verified_is_what_is_loaded(tmp_path: Path) -> None:
    saving = checkpoints(tmp_path)
    saving.save(1, {"model": {"value": torch.arange(6.0)}}, {}, {}, {})
    assert saving.finish() is not None
    loading, value = checkpoints(tmp_path), torch.zeros(6)
    name = loading.choose()
    assert name is not None
    path = tmp_path / name / "__0_0.distcp"
    path.write_bytes(bytes(path.stat().st_size))
    loading.load(name, {"model": {"value": value}})
    assert value.tolist() == list(range(6))
    with pytest.raises(
        CheckpointError, match="has no tensor at byte 0"
    ):  # the memory is free: this reads the store
        loading.load(name, {"model": {"value": value}})


def test_an_altered_file_is_refused_before_a_weight_changes(tmp_path: Path) -> None:
    saving = checkpoints(tmp_path)
    for step in (1, 2):
        saving.save(step, {"model": {"value": torch.full((6,), float(step))}}, {}, {}, {})
        assert saving.finish() is not None
    path = tmp_path / step_name(2) / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    value = torch.zeros(6)
    restore(tmp_path, value)
    assert value.tolist() == [1.0] * 6
    (tmp_path / step_name(1) / "plain.pt").write_bytes(b"x" * 9)
    value.zero_()
    with pytest.raises(CheckpointError, match="no checkpoint of this run can be read"):
        restore(tmp_path, value)
    assert value.tolist() == [0.0] * 6


@pytest.mark.parametrize(("limit", "times"), [(1 << 30, 1), (0, 2)])
def test_a_process_that_only_reads_keeps_no_more_than_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, times: int
) -> None:
    saving = checkpoints(tmp_path)
    saving.save(1, {"model": {"value": torch.arange(50_000.0)}}, {}, {}, {})
    assert saving.finish() is not None
    monkeypatch.setattr(checkpoint_module, "KEPT_READ_ONLY", limit)
    value = torch.zeros(50_000)
    with CountedReads() as read:
        reader = Checkpoints(open_store(str(tmp_path)), CheckpointConfig(), lambda *_: None, read_only=True)
        name = reader.choose()
        assert name is not None
        reader.load(name, {"model": {"value": value}})
    size = (tmp_path / step_name(1) / "__0_0.distcp").stat().st_size
    assert read["__0_0.distcp"] == pytest.approx(times * size, rel=0.01)
