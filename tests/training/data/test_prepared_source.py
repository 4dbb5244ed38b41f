"""A run on prepared data: without its raw data and with an empty cache, it has the losses of the run that
prepared it; a shared store saves later machines the preparation.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.training.data.test_preparation import contents, prepared
from tests.training.data.test_streamed_run import losses
from tests.training.workloads import models
from tests.training.workloads.test_speech import SHARES, TINY, recordings
from trainfleet.errors import InputError
from trainfleet.training.cli.data import data
from trainfleet.training.data import open_prepared, prepared_source
from trainfleet.training.data.first_row import check_first_row
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.loop import train

STEPS = (
    *("steps=3", "validation.every=3", "checkpoint.every=3", "optimizer.warmup=1"),
    *("log.every=1", "log.tensorboard=false"),
)


def images(folder: Path, count: int = 80) -> Path:
    """Images of two classes, one darker than the other."""
    rng = np.random.default_rng(0)
    for number in range(count):
        target = folder / ("bright" if number % 2 else "dark") / f"{number:02}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 100, (12, 10, 3)) + 150 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(target)
    return folder


def texts_of(folder: Path, text_folder: Path) -> Path:
    shutil.copytree(text_folder, folder)
    return folder


def recipe_of(kind: str, folder: Path, text_folder: Path) -> tuple[str, list[str], Path]:
    """A recipe, its overrides without the source, and the folder of its raw data."""
    raw = folder / "raw"
    shares = ["workload.data.validation_share=0.15", "workload.data.test_share=0.15"]
    text = ["workload.data.glob='**/*.txt'", *shares, "scaling.workers=1"]
    if kind == "lm":
        return "lm-tiny", text, texts_of(raw, text_folder)
    if kind == "pretrained lm":
        model = models.causal(folder / "model")
        small = [f"workload.model={{pretrained: {model}, context: 16}}", "workload.data.tokens=model"]
        return "lm-tiny", [*text, *small], texts_of(raw, text_folder)
    if kind == "vision":
        small = ["workload.model={kind: cnn, width: 8, stages: [1]}", "scaling.workers=1"]
        batch = ["batch.global_batch=8", "batch.micro_batch=8"]
        return "vision-small", [*small, *batch, *shares, "workload.data.channels=3"], images(raw)
    small = [*TINY, *SHARES]
    if kind == "pretrained speech":
        model = models.wav2vec2(folder / "model")
        small.append(f"workload.model={{kind: ctc, pretrained: {model}}}")
    return "speech-small", small, recordings(raw)


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["lm", "pretrained lm", "vision", "speech", "pretrained speech"])
def test_a_run_on_prepared_data_needs_no_raw_data_and_has_the_same_losses(
    kind: str,
    tmp_path: Path,
    text_folder: Path,
    run: Callable[..., RunResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, overrides, raw = recipe_of(kind, tmp_path, text_folder)
    from_raw = load_recipe(name, [*overrides, *STEPS, f"workload.data.source={raw}"])
    monkeypatch.setenv("TRAINFLEET_CACHE", str(tmp_path / "cache"))
    to = f"memory://{tmp_path.name}/data"
    sent = CliRunner().invoke(data, [name, *overrides, *STEPS, f"workload.data.source={raw}", "--to", to])
    assert sent.exit_code == 0, sent.output
    run(from_raw, tmp_path / "first")
    shutil.rmtree(raw)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(InputError):
        check_first_row(next(iter(from_raw.workload.raw_data())))
    from_prepared = load_recipe(name, [*overrides, *STEPS, f"workload.data.source={to}"])
    check_first_row(next(iter(from_prepared.workload.raw_data())))
    train(from_prepared, RunContext(tmp_path / "second", cache=tmp_path / "empty"))
    assert losses(tmp_path / "second") == losses(tmp_path / "first")
    assert len(losses(tmp_path / "second")) == 3
    assert sorted(each.name for each in (tmp_path / "empty").iterdir()) == ["blocks"]
    document = json.loads((tmp_path / "second" / "run.json").read_text())["data"]
    assert document["manifest"] == f"{to}/manifest.json"


@pytest.mark.parametrize(
    ("kind", "override", "message"),
    [
        ("vision", "workload.data.size=16", "was prepared with size 8, the recipe has 16"),
        ("speech", "workload.data.rate=8000", "was prepared with rate 16000, the recipe has 8000"),
        ("speech", "workload.data.longest=2", "was prepared with longest 20.0, the recipe has 2.0"),
    ],
)
def test_prepared_data_that_does_not_match_the_recipe_is_rejected(
    kind: str,
    override: str,
    message: str,
    tmp_path: Path,
    text_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRAINFLEET_CACHE", str(tmp_path / "cache"))
    name, overrides, raw = recipe_of(kind, tmp_path, text_folder)
    command = [name, *overrides, "--json"]
    sent = CliRunner().invoke(data, [*command, f"workload.data.source={raw}", "--to", str(tmp_path / "sent")])
    assert sent.exit_code == 0, sent.output
    again = CliRunner().invoke(data, [*command, f"workload.data.source={tmp_path / 'sent'}", override])
    assert isinstance(again.exception, InputError)
    assert message in str(again.exception)


def test_prepared_data_of_another_workload_is_rejected(texts: Path, tmp_path: Path) -> None:
    found = prepared(texts, tmp_path / "cache")
    with pytest.raises(InputError, match="holds length, matrix, name, start instead of image, label"):
        prepared_source(found.where, ("image", "label"))
    assert prepared_source(str(texts), ("image", "label")) is None


def test_a_machine_reads_what_another_one_has_prepared(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"memory://{tmp_path.name}"
    first = prepared(texts, tmp_path / "first", store=store)
    assert first.where.startswith(str(tmp_path / "first"))

    def unread(*_: Any, **__: Any) -> Any:
        raise AssertionError("the raw data is read again")

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["trainfleet.training.data.parts"], "rows_of", unread)
        second = prepared(texts, tmp_path / "second", store=store)
        assert second.where == f"{store}/{Path(first.where).name}"
        assert second.manifest.digest() == first.manifest.digest()
        assert prepared(texts, tmp_path / "first", store=store) == first  # its own cache is nearer
    blocks = second.splits(tmp_path / "second", disk=1 << 30)["train"]
    here = first.blocks("train")
    assert blocks.rows(range(blocks.size))["name"] == here.rows(range(here.size))["name"]
    (texts / "0" / "000.txt").write_text("another text")
    assert prepared(texts, tmp_path / "third", store=store).where.startswith(str(tmp_path / "third"))
    assert len(fsspec.filesystem("memory").glob(f"/{tmp_path.name}/*/manifest.json")) == 2


PREPARE = """
import sys
from pathlib import Path
from tests.training.data.test_preparation import prepared
found = prepared(Path(sys.argv[1]), Path(sys.argv[2]), store=sys.argv[3])
print(found.where)
"""


def start(texts: Path, cache: Path, store: Path, fault: str = "") -> subprocess.Popen[str]:
    """Prepare in another process, as another machine would."""
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, str(texts), str(cache), str(store)],
        env={**os.environ, "TRAINFLEET_FAULT": fault},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_machines_prepare_the_same_data_at_once(texts: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    running = [start(texts, tmp_path / name, store) for name in ("one", "two")]
    for each in running:
        _, errors = each.communicate(timeout=300)
        assert each.returncode == 0, errors
    (folder,) = store.iterdir()
    alone = prepared(texts, tmp_path / "alone")
    assert contents(folder) == contents(Path(alone.where))


def test_a_machine_killed_while_it_copies_leaves_nothing_that_is_used(texts: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    killed = start(texts, tmp_path / "killed", store, "in-upload:5")
    killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL
    (folder,) = store.iterdir()
    assert len(list(folder.rglob("*.arrow"))) == 5
    with pytest.raises(InputError, match=r"has no manifest\.json"):
        open_prepared(str(folder))
    other = prepared(texts, tmp_path / "other", store=str(store))
    assert other.where.startswith(str(tmp_path / "other"))  # it prepared by itself
    assert contents(folder) == contents(Path(other.where))
    again = start(texts, tmp_path / "killed", store)
    again.communicate(timeout=300)
    assert again.returncode == 0
    assert contents(folder) == contents(Path(other.where))


def test_a_reader_of_a_shared_folder_never_sees_a_torn_block(texts: Path, tmp_path: Path) -> None:
    """A second machine that copies the same blocks replaces each of them whole."""
    from trainfleet.training.data import upload

    here = prepared(texts, tmp_path / "cache")
    there = upload.upload(here, str(tmp_path / "store"))
    name = there.manifest.splits["train"][0].name
    with (tmp_path / "store" / name).open("rb") as reader:
        half = reader.read(10)
        upload.send((Path(here.where) / name).read_bytes(), f"{tmp_path / 'store'}/{name}")
        assert half + reader.read() == (Path(here.where) / name).read_bytes()
        assert os.fstat(reader.fileno()).st_ino != (tmp_path / "store" / name).stat().st_ino
