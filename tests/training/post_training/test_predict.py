"""Batch prediction: every row once and in order, atomic output, resumed after an interruption, and the same
output from one process or several.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from trainfleet.errors import InputError
from trainfleet.training.inference import predict as module
from trainfleet.training.inference.predict import Request, predict

Command = Callable[..., subprocess.CompletedProcess[str]]
ROWS = 60


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """JSON lines with handwritten digits as lists of pixels: about 1 KiB for four rows."""
    from sklearn.datasets import load_digits

    images = (load_digits().images[:ROWS] * 15.9).astype(np.uint8).tolist()
    folder = tmp_path / "rows"
    folder.mkdir()
    for name, part in (("a", images[:25]), ("b", images[25:])):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps({"image": image, "id": number}) + "\n" for number, image in enumerate(part))
        )
    return folder


def lines(output: Path) -> list[dict[str, Any]]:
    """All rows of an output, in the order of its files."""
    return [
        json.loads(line)
        for path in sorted(output.glob("part-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def request_for(pictures: Path, rows: Path, output: Path, **more: Any) -> Request:
    """A request with small blocks, computed in this process."""
    return Request(
        str(pictures), str(rows), str(output), **{"workers": 0, "block_kib": 2, "batch": 4, **more}
    )


def test_each_row_has_one_prediction_in_order(pictures: Path, digits: Path, tmp_path: Path) -> None:
    manifest = predict(request_for(pictures, digits, tmp_path / "out"))
    found = lines(tmp_path / "out")
    assert manifest["rows"] == len(found) == ROWS
    assert len(manifest["files"]) > 3
    assert [each["input"]["id"] for each in found] == [*range(25), *range(35)]
    assert all(each["prediction"]["label"] in "0123456789" for each in found)
    assert len({each["name"] for each in found}) == ROWS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "rows"]


def test_an_interrupted_prediction_keeps_finished_blocks_and_resumes_to_the_same_output(
    pictures: Path, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(request_for(pictures, digits, tmp_path / "whole"))
    made: list[int] = []
    original = module.make_block

    def counted(predictor: Any, number: int, *rest: Any) -> module.Block:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(number)
        return original(predictor, number, *rest)

    monkeypatch.setattr(module, "make_block", counted)
    with pytest.raises(KeyboardInterrupt):
        predict(request_for(pictures, digits, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    assert len(list((tmp_path / "out.partial").glob("part-*"))) == 3
    made[:] = [-1] * 10  # the count continues and never reaches 3 again
    predict(request_for(pictures, digits, tmp_path / "out"))
    assert 0 not in made[10:]
    assert lines(tmp_path / "out") == lines(tmp_path / "whole")
    assert not (tmp_path / "out.partial").exists()


def test_a_finished_output_is_not_written_again(pictures: Path, digits: Path, tmp_path: Path) -> None:
    predict(request_for(pictures, digits, tmp_path / "out"))
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert predict(request_for(pictures, digits, tmp_path / "out"))["already"]
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_unreadable_rows_end_the_prediction_or_are_quarantined(
    pictures: Path, digits: Path, tmp_path: Path
) -> None:
    good = (digits / "a.jsonl").read_text().splitlines(keepends=True)
    torn = [
        *good[:5],
        '{"image": [[1, 2\n',
        *good[5:9],
        json.dumps({"image": "no-such.png"}) + "\n",
        *good[9:],
    ]
    (digits / "a.jsonl").write_text("".join(torn))
    with pytest.raises(InputError, match="is not JSON"):
        predict(request_for(pictures, digits, tmp_path / "out", block_kib=64))
    assert not (tmp_path / "out").exists()
    manifest = predict(request_for(pictures, digits, tmp_path / "out", block_kib=64, on_bad="quarantine"))
    found = lines(tmp_path / "out")
    assert (manifest["rows"], manifest["bad"]["count"]) == (ROWS + 2, 2)
    assert [place for place, each in enumerate(found) if each["prediction"] is None] == [5, 10]
    assert [each["input"]["id"] for each in found if each["prediction"]] == [*range(25), *range(35)]
    assert "no-such.png" in json.dumps(found[10])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 5}, "batch: was 4, is now 5"),
        ({"settings": {"top": 2}}, "settings: was"),
        ({"which": "step-10"}, "weights: changed"),
    ],
)
def test_blocks_of_another_request_are_not_reused(
    pictures: Path, digits: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    predict(request_for(pictures, digits, tmp_path / "out", which="step-20"))
    with pytest.raises(InputError, match=message):
        predict(request_for(pictures, digits, tmp_path / "out", **{"which": "step-20", **change}))


def test_a_folder_with_other_content_is_not_overwritten(pictures: Path, digits: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="no predictions"):
        predict(request_for(pictures, digits, tmp_path / "out"))


def test_parquet_is_read_and_written(pictures: Path, tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    images = (load_digits().images[:9] * 15.9).astype(np.uint8).tolist()
    parquet.write_table(pa.table({"image": images, "id": list(range(9))}), tmp_path / "rows.parquet")
    predict(request_for(pictures, tmp_path / "rows.parquet", tmp_path / "out", form="parquet"))
    table = parquet.read_table(
        tmp_path / "out",
        schema=pa.schema([(name, pa.string()) for name in ("name", "input", "prediction", "error")]),
    )
    assert [json.loads(each)["id"] for each in table["input"].to_pylist()] == list(range(9))
    assert all("label" in json.loads(each) for each in table["prediction"].to_pylist())


def test_a_published_model_predicts_the_same_as_its_run(
    pictures_copy: Path, digits: Path, tmp_path: Path
) -> None:
    from trainfleet.training.publish.export import publish

    folder = publish(str(pictures_copy)).folder
    shutil.rmtree(pictures_copy / "checkpoints")
    predict(request_for(folder, digits, tmp_path / "published"))
    assert len(lines(tmp_path / "published")) == ROWS


@pytest.mark.deep
@pytest.mark.launch
def test_ray_actors_write_the_same_output_as_one_process(
    trainfleet: Command, pictures: Path, digits: Path, tmp_path: Path
) -> None:
    options = ["--block-kib", "2", "--batch", "4", "--json"]
    for workers in ("0", "2"):
        done = trainfleet(
            "predict",
            str(pictures),
            str(digits),
            "--output",
            str(tmp_path / workers),
            "--workers",
            workers,
            *options,
            timeout=290,
        )
        assert done.returncode == 0, done.stderr
    assert lines(tmp_path / "2") == lines(tmp_path / "0")
    assert len(lines(tmp_path / "0")) == ROWS


def test_invalid_input_is_one_message(trainfleet: Command, pictures: Path, tmp_path: Path) -> None:
    done = trainfleet(
        "predict", str(pictures), "nowhere", "--output", str(tmp_path / "out"), "--on-bad", "quarantin"
    )
    assert done.returncode == 2
    assert "did you mean `quarantine`?" in done.stderr
    assert "Traceback" not in done.stderr
