"""The first row of a run's data, read before the run has machines."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.data import Column, find_source, prepare
from trainfleet.training.data.first_row import check_first_row
from trainfleet.training.workloads.lm.settings import LmSettings
from trainfleet.training.workloads.settings import RawData


@pytest.mark.parametrize(
    ("files", "overrides", "words"),
    [
        ({"a.py": "x = 1\n"}, {}, None),
        ({"a.txt": "x"}, {}, "no file matches **/*.py"),
        ({"a.py": ""}, {}, "every file is empty"),
        ({"a.jsonl": '{"text": "x"}\n'}, {"glob": "*.jsonl"}, None),
        ({"a.jsonl": '{"text": "x"}\n'}, {"glob": "*.jsonl", "column": "body"}, "has no body"),
        ({"a.jsonl": "x\n"}, {"glob": "*.jsonl"}, "is not JSON"),
        ({"a.jsonl": "x\n"}, {"glob": "*.jsonl", "integrity": "quarantine"}, None),
        ({"a.parquet": "torn"}, {"glob": "*.parquet"}, "a.parquet"),
        (None, {}, "does not exist"),
    ],
    ids=["text", "no match", "empty", "table", "column", "row", "quarantine", "torn table", "missing"],
)
def test_the_first_row_of_the_data_is_read(
    files: dict[str, str] | None, overrides: dict[str, str], words: str | None, tmp_path: Path
) -> None:
    source = tmp_path / "data"
    if files is not None:
        source.mkdir()
        for name, text in files.items():
            (source / name).write_text(text)
    settings = LmSettings.model_validate({"name": "lm", "data": {"source": str(source), **overrides}})
    (data,) = settings.raw_data()
    if words is None:
        check_first_row(data)
        return
    with pytest.raises(InputError) as caught:
        check_first_row(data)
    text = "\n".join(f"{each.where}: {each.what}" for each in caught.value.problems)
    assert text.startswith("workload.data.source ")
    assert words in text


def test_the_first_rows_of_prepared_data_are_read(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for number in range(200):
        (tmp_path / "text" / f"{number}.txt").write_text(f"text {number} " * 20)
    prepared = prepare(find_source(str(tmp_path / "text")), Lengths(), tmp_path / "cache", name="lengths")
    check_first_row(RawData(prepared.where))
    shutil.rmtree(Path(prepared.where) / "validation")
    with pytest.raises(TrainfleetError):
        check_first_row(RawData(prepared.where))


class Lengths:
    """A transform for the test."""

    columns = {"length": Column("int64")}
    key = "lengths 1"

    def __call__(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, int]]:
        return [{"length": len(row["text"])} for row in rows]
