"""Every kind of raw file is read, and a damaged file is reported by name with the reason."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from trainfleet.errors import InputError
from trainfleet.training.data import BadInput, find_source
from trainfleet.training.data.sources import provenance, rows_of


def rows(where: str, *globs: str, **settings: Any) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Good rows, and the problem of each bad row by its name."""
    found = [each for unit in find_source(where, *globs, **settings).units for each in rows_of(unit)]
    good = [each for each in found if not isinstance(each, BadInput)]
    return good, {each.where: each.what for each in found if isinstance(each, BadInput)}


@pytest.fixture
def audio_files(tmp_path: Path) -> Path:
    """One second of a tone as WAV and FLAC, one of them with its text in a .txt; a truncated WAV, one that is
    text, an empty one, and one without samples.
    """
    soundfile = pytest.importorskip("soundfile")
    tone = np.sin(np.arange(8000) * 0.1).astype(np.float32) / 2
    soundfile.write(tmp_path / "a.wav", tone, 8000, subtype="FLOAT")
    soundfile.write(tmp_path / "b.flac", np.stack([tone, -tone], axis=1), 8000)
    (tmp_path / "a.txt").write_text("a tone\n")
    whole = (tmp_path / "a.wav").read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[:1000])
    (tmp_path / "text.wav").write_text("no sound at all")
    (tmp_path / "empty.wav").write_bytes(b"")
    soundfile.write(tmp_path / "silent.wav", tone[:0], 8000)
    return tmp_path


def test_audio_has_its_rate_and_text_and_damaged_files_are_reported(audio_files: Path) -> None:
    good, bad = rows(str(audio_files), "**/*.wav")
    assert [each["name"] for each in good] == ["a.wav"]
    assert good[0]["rate"] == 8000
    assert good[0]["text"] == "a tone"
    assert np.allclose(good[0]["audio"], np.sin(np.arange(8000) * 0.1) / 2, atol=1e-6)
    assert bad["empty.wav"] == "is empty"
    assert bad["cut.wav"].startswith("is truncated: 1000 of ")
    assert bad["text.wav"].startswith("is not audio, or is truncated")
    assert bad["silent.wav"] == "holds no samples"
    good, bad = rows(str(audio_files), "*.flac")
    assert (good[0]["audio"].shape, good[0]["audio"].dtype.name, bad) == ((8000, 2), "float32", {})


def test_images_have_their_folder_as_label_and_damaged_files_are_reported(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    image.fromarray(pixels).save(tmp_path / "cat" / "1.png")
    image.fromarray(pixels[:, :, 0]).save(tmp_path / "dog" / "2.png")
    image.fromarray(pixels).convert("P").save(tmp_path / "dog" / "3.gif")
    whole = (tmp_path / "cat" / "1.png").read_bytes()
    (tmp_path / "cat" / "torn.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cat" / "text.jpg").write_text("no image")
    good, bad = rows(str(tmp_path))
    assert [(each["name"], each["label"], each["image"].shape) for each in good] == [
        ("cat/1.png", "cat", (20, 30, 3)),
        ("dog/2.png", "dog", (20, 30)),
        ("dog/3.gif", "dog", (20, 30, 3)),
    ]
    assert (good[0]["image"] == pixels).all()
    assert set(bad) == {"cat/torn.png", "cat/text.jpg"}
    assert all(what.startswith("is not an image, or is truncated") for what in bad.values())


def test_a_saved_dataset_keeps_its_splits_and_its_audio_and_images_are_decoded(
    tmp_path: Path,
) -> None:
    datasets = pytest.importorskip("datasets")
    soundfile, image = pytest.importorskip("soundfile"), pytest.importorskip("PIL.Image")
    tone = io.BytesIO()
    soundfile.write(tone, np.zeros(100, np.float32), 16000, format="WAV")
    picture = io.BytesIO()
    image.fromarray(np.full((4, 5, 3), 9, np.uint8)).save(picture, format="PNG")

    def of(count: int, sound: bytes) -> Any:
        held = {
            "sound": [{"bytes": sound, "path": None}] * count,
            "picture": [{"bytes": picture.getvalue(), "path": None}] * count,
            "text": [f"row {number}" for number in range(count)],
        }
        return (
            datasets.Dataset.from_dict(held)
            .cast_column("sound", datasets.Audio())
            .cast_column("picture", datasets.Image())
        )

    datasets.DatasetDict(
        {"train": of(5, tone.getvalue()), "validation": of(2, tone.getvalue()), "other": of(1, b"torn")}
    ).save_to_disk(str(tmp_path / "set"))
    good, bad = rows(str(tmp_path / "set"), unit_bytes=100)
    assert [each["name"] for each in good] == [
        *(f"train#{number}" for number in range(5)),
        "validation#0",
        "validation#1",
    ]
    assert [each.get("split") for each in good] == [None] * 5 + [
        "validation"
    ] * 2  # a data set without a test split gets one from `train`
    assert (good[3]["text"], good[3]["rate"], good[3]["sound"].shape, good[3]["picture"].shape) == (
        "row 3",
        16000,
        (100,),
        (4, 5, 3),
    )
    assert list(bad) == [f"{tmp_path}/set/other#0"]
    assert "sound: is not audio, or is truncated" in bad[f"{tmp_path}/set/other#0"]
    assert len(find_source(str(tmp_path / "set"), unit_bytes=100).units) > 2
    datasets.DatasetDict(
        {name: of(1, tone.getvalue()) for name in ("train", "validation", "test")}
    ).save_to_disk(str(tmp_path / "three"))
    good, _ = rows(str(tmp_path / "three"))
    assert sorted(each["split"] for each in good) == ["test", "train", "validation"]
    _, bad = rows(str(tmp_path / "set"), columns=["words"])
    assert len(bad) == 3
    assert all(what.startswith("has no column words, only") for what in bad.values())
    with pytest.raises(InputError, match="cannot open the dataset"):
        find_source("hf:/no/such/dataset")


def test_invalid_json_lines_are_reported_with_their_byte_offset(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": \n\n[1]\n{"other": 2}\n{"text": "two"}')
    good, bad = rows(str(tmp_path), columns=["text"])
    assert good == [{"text": "one", "name": "a.jsonl@0"}, {"text": "two", "name": "a.jsonl@44"}]
    assert bad == {
        "a.jsonl@16": "is not JSON",
        "a.jsonl@27": "is not a JSON object",
        "a.jsonl@31": "has no text",
    }


def test_json_lines_that_no_reader_can_use_are_reported(tmp_path: Path) -> None:
    emoji, half, deep = r'{"text": "\ud83d\ude00"}', r'{"text": ["\uD83D"]}', '{"text": ' + "[" * 100_000
    (tmp_path / "a.jsonl").write_text("\n".join((emoji, half, deep)))
    good, bad = rows(str(tmp_path), columns=["text"])
    assert [each["text"] for each in good] == ["\N{GRINNING FACE}"]
    assert list(bad.values()) == ["has half of a surrogate pair, which is not Unicode text", "is not JSON"]


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Texts, a table and an audio file in an object store."""
    system = fsspec.filesystem("memory")
    if system.exists("/raw"):
        system.rm("/raw", recursive=True)
    system.pipe(
        {"/raw/a/1.txt": b"one", "/raw/a/2.txt": b"two", "/raw/b/3.txt": b"three", "/raw/empty.txt": b""}
    )
    sink = io.BytesIO()
    parquet.write_table(pa.table({"value": [1, 2]}), sink)
    system.pipe("/raw/t.parquet", sink.getvalue())
    return "memory://raw"


def test_an_object_store_is_read_like_a_folder(store: str) -> None:
    good, bad = rows(store, "**/*.txt")
    assert [(each["name"], each["text"]) for each in good] == [
        ("a/1.txt", b"one"),
        ("a/2.txt", b"two"),
        ("b/3.txt", b"three"),
    ]
    assert bad == {"empty.txt": "is empty"}
    good, bad = rows(store, "*.parquet")
    assert [each["value"] for each in good] == [1, 2]
    assert [each["bytes"] for unit in find_source(store, "a/*").units for each in provenance(unit)] == [3, 3]
    with pytest.raises(InputError, match="no file matches"):
        find_source(store, "*.wav")


@pytest.mark.parametrize(
    ("where", "message"),
    [("nothing://here", "cannot use the URL"), ("/no/such/folder", "does not exist")],
)
def test_missing_data_is_one_clear_error(where: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_source(where)
