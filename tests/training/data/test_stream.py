"""Reading blocks: any samples, in bounded memory, from a folder or an object store; a damaged block is
reported.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.data import (
    Blocks,
    Column,
    PerRow,
    Prepared,
    SplitRule,
    WindowOrder,
    find_source,
    open_prepared,
    prepare,
    remote,
)
from trainfleet.training.data.blocks import BlockEntry
from trainfleet.training.data.remote import BlockCache, glob_pattern

ROWS, BLOCKS = 32, 40


def sample(row: dict[str, Any]) -> dict[str, Any]:
    """The number of a line as one column of each kind."""
    number = int(row["value"])
    return {
        "one": number,
        "fixed": np.full((4, 2), number, np.float32),
        "ragged": np.arange(number % 5, dtype=np.int16),
        "text": str(number),
    }


COLUMNS = {
    "one": Column("int64"),
    "fixed": Column("float32", (4, 2)),
    "ragged": Column("int16", (None,)),
    "text": Column("string"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("stream")
    (folder / "raw").mkdir()
    (folder / "raw" / "a.jsonl").write_text(
        "".join(f'{{"value": {number}}}\n' for number in range(ROWS * BLOCKS + 5 + 2))
    )
    rule = SplitRule(0.0, 0.0)
    source = find_source(str(folder / "raw"))
    names = [
        f"a.jsonl@{place}" for place in (0, 13)
    ]  # the first two lines are the validation and the test split

    class Rule(SplitRule):
        def of_name(self, name: str) -> str:
            return ("validation", "test")[names.index(name)] if name in names else "train"

    assert rule.of_name("anything") == "train"
    return prepare(
        source,
        PerRow(sample, COLUMNS, "sample 1"),
        folder / "cache",
        name="lines",
        rule=Rule(0.0, 0.0),
        rows_per_block=ROWS,
    )


def value_of(index: int) -> int:
    return index + 2


@settings(max_examples=30, deadline=None)
@given(indices=st.lists(st.integers(0, ROWS * BLOCKS + 4), min_size=1, max_size=80))
def test_rows_are_the_requested_samples_in_that_order(data: Prepared, indices: list[int]) -> None:
    rows = data.blocks("train", memory=20_000).rows(indices)
    assert rows["one"].tolist() == [value_of(index) for index in indices]
    assert rows["fixed"].shape == (len(indices), 4, 2)
    assert rows["fixed"][:, 3, 1].tolist() == rows["one"].tolist()
    assert [len(each) for each in rows["ragged"]] == [value_of(index) % 5 for index in indices]
    assert rows["text"] == [str(value_of(index)) for index in indices]


def test_rows_stay_valid_after_their_block_is_closed(data: Prepared) -> None:
    blocks = data.blocks("train", memory=1)
    first = blocks.rows([0, 1])
    blocks.rows([ROWS * 9])
    blocks.close()
    assert first["one"].tolist() == [2, 3]
    first["fixed"][0] = 7  # a copy, so writing to it changes no file
    assert blocks.rows([0])["fixed"][0, 0, 0] == 2


def test_samples_out_of_range_are_rejected(data: Prepared) -> None:
    blocks = data.blocks("train")
    for wrong in ([ROWS * BLOCKS + 5], [-1]):
        with pytest.raises(IndexError, match="numbered 0 to 1284"):
            blocks.rows(wrong)
    with pytest.raises(InputError, match="train, validation, test"):
        data.blocks("training")


def wait_for(condition: Callable[[], bool], limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


def open_blocks(blocks: Blocks) -> set[int]:
    with blocks._lock:
        return set(blocks._open)


def test_prefetched_blocks_are_opened_in_the_background(data: Prepared) -> None:
    blocks = data.blocks("train")
    rows = [3, ROWS + 1, 5 * ROWS]
    blocks.prefetch(rows)
    wait_for(lambda: open_blocks(blocks) == {0, 1, 5})
    blocks.rows(rows)
    assert blocks.wait_seconds == 0
    assert blocks.opened == 3
    blocks.rows([9 * ROWS])
    assert blocks.wait_seconds > 0


def test_a_windowed_epoch_opens_each_block_once_and_holds_two_windows(data: Prepared) -> None:
    largest = max(each.bytes for each in data.manifest.splits["train"])
    window = 4
    blocks = data.blocks("train", memory=2 * window * largest)
    order, most, seen = WindowOrder(1, blocks.sizes(), window), 0, []
    for position in range(0, order.size, 16):
        count = min(16, order.size - position)
        blocks.prefetch(order.upcoming(position, 2 * count))
        seen += blocks.rows(order.indices(position, count))["one"].tolist()
        most = max(most, blocks._bytes)
    assert sorted(seen) == [value_of(index) for index in range(order.size)]
    assert most <= 2 * window * largest
    assert (
        blocks.opened <= len(blocks.entries) + 2 * window
    )  # the first window of the next epoch is being prefetched


def test_a_resume_reads_one_window_and_no_earlier_block(data: Prepared) -> None:
    blocks, window = data.blocks("train"), 4
    order = WindowOrder(1, blocks.sizes(), window)
    blocks.rows(order.indices(int(order.size * 0.9), 16))
    assert blocks.opened <= 2 * window


def test_a_request_larger_than_the_memory_limit_still_works(data: Prepared) -> None:
    blocks = data.blocks("train", memory=1)
    indices = list(range(0, ROWS * BLOCKS, ROWS))
    blocks.prefetch(indices)
    assert blocks.rows(indices)["one"].tolist() == [value_of(index) for index in indices]
    assert open_blocks(blocks) == set()
    blocks.rows([ROWS])
    assert open_blocks(blocks) == set()


def damaged_copy(data: Prepared, folder: Path, damage: str) -> Prepared:
    """A copy of prepared data with one damaged block."""
    shutil.copytree(data.where, folder)
    entry = data.manifest.splits["train"][2]
    path = folder / entry.name
    if damage == "altered":
        payload = bytearray(path.read_bytes())
        payload[len(payload) // 2] ^= 1
        path.write_bytes(payload)
    elif damage == "cut":
        os.truncate(path, entry.bytes - 8)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
    return open_prepared(str(folder))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("altered", "has another checksum"),
        ("cut", "bytes instead of"),
        ("empty", "empty"),
        ("removed", "No such file"),
    ],
)
@pytest.mark.parametrize("expected", [False, True])
def test_a_damaged_block_is_reported_when_it_is_read_and_not_before(
    data: Prepared, tmp_path: Path, damage: str, message: str, expected: bool
) -> None:
    blocks = damaged_copy(data, tmp_path / "copy", damage).blocks("train")
    if expected:
        blocks.prefetch([2 * ROWS, 0])
    assert blocks.rows([0])["one"].tolist() == [2]
    with pytest.raises(TrainfleetError, match=f"00002.arrow: .*{message}") as refused:
        blocks.rows([2 * ROWS])
    assert "remove the folder" in refused.value.problems[0].fix


@pytest.fixture
def store(data: Prepared) -> str:
    """The prepared data in an object store."""
    system = fsspec.filesystem("memory")
    system.rm("/bucket", recursive=True) if system.exists("/bucket") else None
    system.put(data.where, "/bucket/lines", recursive=True)
    return "memory://bucket/lines"


def test_blocks_of_an_object_store_are_fetched_once_into_a_cache_of_bounded_size(
    data: Prepared, store: str, tmp_path: Path
) -> None:
    entries = data.manifest.splits["train"]
    limit = 5 * max(each.bytes for each in entries)
    blocks = open_prepared(store).blocks("train", cache=tmp_path / "cache", disk=limit, memory=1)
    for number in range(len(entries)):
        assert blocks.rows([number * ROWS])["one"].tolist() == [value_of(number * ROWS)]
        held = list((tmp_path / "cache").glob("*.arrow"))
        assert sum(path.stat().st_size for path in held) <= limit
    assert len(held) >= 4
    kept = tmp_path / "cache" / f"{entries[-1].sha256}.arrow"
    made = kept.stat().st_ino
    again = open_prepared(store).blocks("train", cache=tmp_path / "cache", disk=limit)
    again.rows([(len(entries) - 1) * ROWS])
    assert kept.stat().st_ino == made


def test_the_cache_evicts_the_least_recently_used_block(data: Prepared, store: str, tmp_path: Path) -> None:
    entries = data.manifest.splits["train"]
    cache = BlockCache(tmp_path / "cache", 3 * max(each.bytes for each in entries))
    for place, number in enumerate((0, 1, 2)):
        os.utime(cache.get(store, entries[number]), (place, place))
    cache.get(store, entries[0])  # used again
    cache.get(store, entries[3])
    held = {path.stem for path in (tmp_path / "cache").glob("*.arrow")}
    assert held == {entries[number].sha256 for number in (0, 2, 3)}


def test_a_damaged_block_in_the_store_is_rejected_and_not_cached(
    data: Prepared, store: str, tmp_path: Path
) -> None:
    entry = data.manifest.splits["train"][0]
    fsspec.filesystem("memory").pipe(f"/bucket/lines/{entry.name}", b"x" * entry.bytes)
    blocks = open_prepared(store).blocks("train", cache=tmp_path / "cache")
    with pytest.raises(
        TrainfleetError, match=r"memory://bucket/lines/train/00000\.arrow: .*has another checksum"
    ):
        blocks.rows([0])
    assert list((tmp_path / "cache").glob("*.arrow")) == []


def test_a_temporary_error_of_the_store_is_retried(
    data: Prepared, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(remote, "STREAM_BUDGET_S", 0.0)
    fetched, failures = remote.filesystem, iter([OSError("reset by peer")] * 3)

    def flaky(where: str) -> Any:
        system, path = fetched(where)

        class System:
            def open_input_file(self, path: str) -> Any:
                for failure in failures:
                    raise failure
                return system.open_input_file(path)

        return System(), path

    monkeypatch.setattr(remote, "filesystem", flaky)
    entry: BlockEntry = data.manifest.splits["train"][0]
    assert BlockCache(tmp_path / "cache", 1 << 30).get(store, entry).stat().st_size == entry.bytes
    failures = iter([OSError("reset by peer")] * 99)
    with pytest.raises(TrainfleetError, match="failed 5 times: reset by peer"):
        BlockCache(tmp_path / "other", 1 << 30).get(store, entry)


def test_a_permanent_error_is_not_retried() -> None:
    asked = []

    def refused() -> None:
        asked.append(1)
        raise OSError(
            "When reading information for key 'a' in bucket 'b': AWS Error ACCESS_DENIED during HeadObject operation"
        )

    with pytest.raises(PermissionError, match="access denied"):
        remote.with_retries(refused, "s3://b/a")
    assert len(asked) == 1


def test_globs_match_as_in_a_shell() -> None:
    cases = [
        ("**/*.py", "a.py", True),
        ("**/*.py", "b/c/a.py", True),
        ("*.py", "b/a.py", False),
        ("a?/**", "ab/c/d", True),
        ("*.py", "apy", False),
    ]
    assert [
        (glob, name) for glob, name, fits in cases if bool(glob_pattern(glob).fullmatch(name)) != fits
    ] == []
