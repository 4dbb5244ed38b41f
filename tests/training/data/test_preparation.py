"""Preparation: the same blocks from one process or several, atomic, resumed after a kill, and every bad row
reported.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.training.data.transforms import Bytes, Measured, number
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.data import (
    Column,
    Integrity,
    PerRow,
    Prepared,
    SplitRule,
    find_source,
    open_prepared,
    pack_blocks,
    prepare,
)
from trainfleet.training.data.pack_blocks import scattered
from trainfleet.training.data.parts import SPLITS
from trainfleet.training.data.sources import rows_of
from trainfleet.training.data.upload import upload

RULE = SplitRule(0.2, 0.2)


def prepared(folder: Path, cache: Path, transform: Any = Measured(), **more: Any) -> Prepared:
    units = {key: more.pop(key) for key in ("unit_bytes", "glob", "columns", "allow_empty") if key in more}
    return prepare(
        find_source(str(folder), **{"unit_bytes": 2000, **units}),
        transform,
        cache,
        name="test",
        **{"rule": RULE, "rows_per_block": 16, **more},
    )


def all_samples(data: Prepared, split: str) -> dict[str, Any]:
    blocks = data.blocks(split)
    return blocks.rows(range(blocks.size))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_each_row_is_in_one_split_once_and_as_the_transform_returned_it(texts: Path, tmp_path: Path) -> None:
    data = prepared(texts, tmp_path / "cache")
    names = []
    for split in SPLITS:
        rows = all_samples(data, split)
        names += rows["name"]
        assert all(RULE.of_name(name) == split for name in rows["name"])
        for place, name in enumerate(rows["name"]):
            text = (texts / name).read_bytes()
            assert rows["length"][place] == len(text)
            assert bytes(rows["start"][place]) == text[: len(text) % 7]
            assert (rows["matrix"][place] == len(text)).all()
    assert sorted(names) == sorted(path.relative_to(texts).as_posix() for path in texts.rglob("*.txt"))
    assert all(block.rows == 16 for block in data.manifest.splits["train"][:-1])
    sources = [json.loads(line) for line in (Path(data.where) / "sources.jsonl").read_text().splitlines()]
    assert {each["name"] for each in sources} == set(names)
    assert data.manifest.source_files == len(sources) == len(names)


def test_rows_keep_the_order_of_the_files(texts: Path, tmp_path: Path) -> None:
    names = all_samples(prepared(texts, tmp_path / "cache"), "train")["name"]
    assert names == sorted(names)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "more",
    [{"transform": Measured()}, {"transform": Measured(), "scatter": 4}, {"transform": Bytes(), "pack": 8}],
)
def test_several_processes_write_the_same_bytes_as_one(
    texts: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    here = prepared(texts, tmp_path / "here", via="here", **more)
    there = prepared(texts, tmp_path / "there", via="processes", processes=2, **more)
    assert contents(Path(here.where)) == contents(Path(there.where))
    assert len(here.manifest.splits["train"]) > 2


def test_the_size_of_units_changes_only_the_key(texts: Path, tmp_path: Path) -> None:
    digests = {
        prepared(texts, tmp_path / str(size), unit_bytes=size).manifest.digest()
        for size in (500, 2000, 1 << 20)
    }
    assert len(digests) == 1


def test_scattering_changes_only_the_order_of_samples(texts: Path, tmp_path: Path) -> None:
    plain, dealt = (
        all_samples(prepared(texts, tmp_path / "cache", scatter=seed), "train") for seed in (None, 1)
    )
    assert plain["name"] != dealt["name"]
    assert sorted(plain["name"]) == sorted(dealt["name"])
    by_name = dict(zip(plain["name"], plain["length"], strict=True))
    assert all(by_name[name] == length for name, length in zip(dealt["name"], dealt["length"], strict=True))
    assert all(
        (start == np.frombuffer((texts / name).read_bytes()[: len(start)], np.uint8)).all()
        for name, start in zip(dealt["name"], dealt["start"], strict=True)
    )


def test_scattering_computes_one_order_per_split(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def counted(count: int, seed: int) -> Any:
        counts.append(count)
        return scattered(count, seed)

    monkeypatch.setattr(pack_blocks, "scattered", counted)
    found = prepared(texts, tmp_path, scatter=1, rows_per_block=2).manifest
    assert sum(len(found.splits[split]) for split in SPLITS) > 10
    assert sorted(counts) == sorted(found.rows(split) for split in SPLITS)


def test_data_is_prepared_again_only_after_a_change(texts: Path, tmp_path: Path) -> None:
    first = prepared(texts, tmp_path / "cache")
    made = (Path(first.where) / "manifest.json").stat().st_mtime_ns
    assert prepared(texts, tmp_path / "cache").where == first.where
    assert (Path(first.where) / "manifest.json").stat().st_mtime_ns == made
    for change in (
        {"rows_per_block": 8},
        {"transform": Measured("measured 2")},
        {"rule": SplitRule(0.3, 0.2)},
        {"scatter": 1},
    ):
        assert prepared(texts, tmp_path / "cache", **change).where != first.where
    (texts / "0" / "000.txt").write_text("another text")
    assert prepared(texts, tmp_path / "cache").where != first.where


@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_a_folder_without_one_of_its_blocks_is_prepared_again(
    texts: Path, tmp_path: Path, damage: str
) -> None:
    data = prepared(texts, tmp_path / "cache")
    before = contents(Path(data.where))
    block = Path(data.where) / data.manifest.splits["train"][1].name
    if damage == "cut":
        os.truncate(block, 100)
    else:
        block.unlink()
    assert contents(Path(prepared(texts, tmp_path / "cache").where)) == before


PREPARE = """
import sys
from pathlib import Path
from tests.training.data.test_preparation import prepared
from trainfleet import files
made = []
write = files.write_whole
def counted(path, *more):
    made.append(path)
    write(path, *more)
import trainfleet.training.data.pack_blocks
for module in ("prepare", "pack_blocks"):  # the package's `prepare` is the function
    sys.modules[f"trainfleet.training.data.{module}"].write_whole = counted
prepared(Path(sys.argv[1]), Path(sys.argv[2]))
print(sum(path.suffix == ".arrow" for path in made))
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("point", ["in-preparation:4", "in-assembly:3"])
def test_a_killed_preparation_resumes_and_writes_the_same_bytes(
    texts: Path, tmp_path: Path, point: str
) -> None:
    def start(cache: str, fault: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PREPARE, str(texts), str(tmp_path / cache)]
        return subprocess.run(
            command,
            env={**os.environ, "TRAINFLEET_FAULT": fault},
            capture_output=True,
            text=True,
            check=False,
        )

    whole = start("whole")
    killed = start("killed", point)
    assert whole.returncode == 0, whole.stderr
    assert killed.returncode == -signal.SIGKILL
    assert list((tmp_path / "killed").glob("test-*/manifest.json")) == []
    again = start("killed")
    assert again.returncode == 0, again.stderr
    assert int(again.stdout) <= int(whole.stdout) - 3  # finished units are not prepared again
    folders = [next((tmp_path / cache).glob("test-*/manifest.json")).parent for cache in ("whole", "killed")]
    assert contents(folders[0]) == contents(folders[1])
    assert [path.name for path in (tmp_path / "killed").iterdir() if path.name.endswith(".building")] == []


def add_bad_files(texts: Path) -> dict[str, str]:
    """Add four files that cannot be read and one that is left out on purpose."""
    (texts / "empty.txt").write_bytes(b"")
    (texts / "nan.txt").write_bytes(b"nan")
    (texts / "bad.txt").write_bytes(b"bad")
    (texts / "double.txt").write_bytes(b"double")
    (texts / "skip.txt").write_bytes(b"skip")
    return {
        "empty.txt": "is empty",
        "nan.txt": "matrix holds 6 NaN or Inf values",
        "bad.txt": "says that it is bad",
        "double.txt": "matrix is float64 instead of float32",
    }


def test_all_bad_rows_are_rejected_at_once_by_name(texts: Path, tmp_path: Path) -> None:
    expected = add_bad_files(texts)
    with pytest.raises(InputError, match="4 of the data's files and rows cannot be used") as refused:
        prepared(texts, tmp_path / "cache")
    assert {each.where: each.what for each in refused.value.problems if each.where} == expected
    assert list((tmp_path / "cache").rglob("*.arrow")) == []


def test_bad_rows_are_quarantined_and_counted_up_to_a_limit(texts: Path, tmp_path: Path) -> None:
    clean = prepared(texts, tmp_path / "cache")
    expected = add_bad_files(texts)
    data = prepared(texts, tmp_path / "cache", integrity=Integrity("quarantine", 0.02))
    assert {each["where"]: each["what"] for each in data.manifest.bad["named"]} == expected
    assert data.data_info()["left_out"]["count"] == 4
    assert json.loads((Path(data.where) / "manifest.json").read_text())["bad"]["count"] == 4
    for split in SPLITS:
        assert all_samples(data, split)["name"] == all_samples(clean, split)["name"]
    with pytest.raises(InputError, match=r"1\.3%, more than the limit of 1\.0%"):
        prepared(texts, tmp_path / "cache", integrity=Integrity("quarantine", 0.01))


def test_a_damaged_table_a_wrong_schema_and_a_bad_row_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    for name in "abcd":
        parquet.write_table(pa.table({"value": list(range(100))}), folder / f"{name}.parquet")
    parquet.write_table(pa.table({"values": [1]}), folder / "schema.parquet")
    parquet.write_table(pa.table({"value": [1, -2, 3]}), folder / "row.parquet")
    parquet.write_table(pa.table({"value": pa.array([], pa.int64())}), folder / "none.parquet")
    whole = (folder / "a.parquet").read_bytes()
    (folder / "torn.parquet").write_bytes(whole[: len(whole) // 2])
    transform = PerRow(number, {"value": Column("int64")}, "number 1")
    with pytest.raises(InputError) as refused:
        prepared(folder, tmp_path / "cache", transform, columns=["value"])
    found = {each.where: each.what for each in refused.value.problems if each.where}
    assert found.pop("torn.parquet").startswith("is not a parquet file, or is truncated")
    assert found == {
        "schema.parquet": "has no column value, only values",
        "row.parquet#1": "is negative",
        "none.parquet": "holds no rows",
    }
    data = prepared(
        folder, tmp_path / "cache", transform, columns=["value"], integrity=Integrity("quarantine", 0.02)
    )
    assert sum(data.manifest.rows(split) for split in SPLITS) == 402


def test_a_large_table_is_split_by_row_groups_and_a_large_text_by_lines(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    parquet.write_table(
        pa.table({"value": list(range(5000))}),
        tmp_path / "table" / "a.parquet",
        row_group_size=100,
        compression="none",
        use_dictionary=False,
    )
    (tmp_path / "text").mkdir()
    text = "".join(f"line {number} of a long text\n" for number in range(3000))
    (tmp_path / "text" / "a.txt").write_text(text)
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.jsonl").write_text(
        "".join(json.dumps({"value": value}) + "\n" for value in range(5000))
    )
    transform = PerRow(number, {"value": Column("int64")}, "number 1")
    for kind in ("table", "lines"):
        assert len(find_source(str(tmp_path / kind), unit_bytes=2000).units) > 5
        data = prepared(tmp_path / kind, tmp_path / "cache", transform)
        assert sorted(
            value for split in SPLITS for value in all_samples(data, split)["value"].tolist()
        ) == list(range(5000))
    source = find_source(str(tmp_path / "text"), unit_bytes=2000)
    assert len(source.units) > 5
    pieces = [row for unit in source.units for row in rows_of(unit)]
    assert b"".join(row["text"] for row in pieces) == text.encode()  # type: ignore[index]  # none is bad
    assert [row["last"] for row in pieces] == [False] * (len(pieces) - 1) + [True]  # type: ignore[index]  # the same


def test_splits_with_too_little_data_are_reported(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"test: less than one sample \(train \d+, validation \d+, test 0\)"):
        prepared(texts, tmp_path / "cache", rule=SplitRule(0.2, 0.0))


def test_a_folder_without_prepared_data_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no manifest\.json"):
        open_prepared(str(tmp_path))
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="not a manifest of prepared data, or is truncated"):
        open_prepared(str(tmp_path))


def test_data_of_the_previous_format_is_read(texts: Path, tmp_path: Path) -> None:
    data = prepared(texts, tmp_path / "cache")
    manifest = Path(data.where) / "manifest.json"
    document = json.loads(manifest.read_text())
    sources = [json.loads(line) for line in (Path(data.where) / "sources.jsonl").read_text().splitlines()]
    (Path(data.where) / "sources.jsonl").unlink()
    del document["source_files"]
    manifest.write_text(json.dumps({**document, "format": 1, "sources": sources}))
    old = open_prepared(data.where)
    assert old.manifest == data.manifest
    blocks = {split: [each["sha256"] for each in document["splits"][split]] for split in sorted(SPLITS)}
    identity = json.dumps([1, blocks, {}], sort_keys=True)  # as the checkpoints of 0.1.0 have it
    assert old.manifest.digest() == hashlib.sha256(identity.encode()).hexdigest()
    assert upload(old, str(tmp_path / "sent")).manifest == data.manifest
    manifest.write_text(json.dumps({**document, "format": 3}))
    with pytest.raises(InputError, match="is format 3, not 1 or 2"):
        open_prepared(data.where)


def test_the_other_files_of_the_folder_are_checked_too(texts: Path, tmp_path: Path) -> None:
    data = prepared(texts, tmp_path / "cache", extras={"words.json": b"[1, 2]"})
    assert data.extra("words.json") == b"[1, 2]"
    (Path(data.where) / "words.json").write_bytes(b"[1, 3]")
    with pytest.raises(TrainfleetError, match=r"words\.json: has changed since it was written"):
        data.extra("words.json")
