"""Using a trained model where its training data, the prepared data and the pretrained model no longer exist: a
run, and a published folder on another machine, give the same predictions as before.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.post_training.handler_client import HandlerClient
from tests.training.workloads import models
from trainfleet.errors import InputError
from trainfleet.training.evaluate import evaluate
from trainfleet.training.inference.evaluate_rows import evaluate_rows
from trainfleet.training.inference.loaded import load_run
from trainfleet.training.inference.predictor import open_predictor
from trainfleet.training.inference.serve.request_handler import Limits, RequestHandler
from trainfleet.training.publish.export import publish
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.trainer.context import RunContext, default_cache
from trainfleet.training.trainer.loop import train

SHORT = [
    *("scaling.workers=1", "steps=2", "log.tensorboard=false", "optimizer.warmup=1"),
    *("batch.global_batch=4", "batch.micro_batch=4", "validation.every=2", "checkpoint.every=2"),
    *("publish={gates: {validation/loss: {max: 1000}}, require_test: false}", "validation.samples=8"),
]
LM = [
    "workload.data.glob='**/*.txt'",
    *(f"workload.data.{each}_share=0.15" for each in ("validation", "test")),
]
PROMPTS = [{"text": "the tensor"}, {"text": "a step"}]


def texts(folder: Path) -> None:
    for number in range(40):
        (folder / f"{number:02}.txt").write_text(f"the tensor {number} sums a gradient. step the loss! " * 20)


def pictures(folder: Path) -> None:
    from PIL import Image

    for number in range(90):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
        (folder / "cab"[number % 3]).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / "cab"[number % 3] / f"{number}.png")


def sounds(folder: Path) -> None:
    for number in range(60):
        sound = np.random.default_rng(number).normal(0, 3000, 8000).astype("<i2")
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes(sound.tobytes())
        (folder / f"{number}.txt").write_text("hallo welt")


SOUND = [{"audio": (np.sin(np.arange(9000) / 9) * 9000).astype("int16").tolist(), "rate": 16_000}]
PIXELS = [{"image": np.random.default_rng(99).integers(0, 256, (8, 8)).tolist()}]
SPEECH = [f"workload.data.{each}_share=0.2" for each in ("validation", "test")]
PRETRAINED = ["workload.model.pretrained={model}", "workload.data.tokens=model", "workload.model.context=16"]
CTC = "workload.model={kind: ctc, width: 16, layers: 1, heads: 2, mels: 16}"


@dataclass(frozen=True)
class Case:
    """How a model is trained, and rows for it."""

    recipe: str
    make: Callable[[Path], None]
    overrides: list[str]
    rows: list[dict[str, Any]]
    model: Callable[[Path], Path] | None = None


CASES = {
    "lm-bytes": Case("lm-tiny", texts, LM, PROMPTS),
    "lm-bpe": Case(
        "lm-tiny", texts, [*LM, "workload.data.tokens=bpe", "workload.data.vocabulary=300"], PROMPTS
    ),
    "lm-pretrained": Case("lm-tiny", texts, [*LM, *PRETRAINED], PROMPTS, models.causal),
    "lm-lora": Case(
        "lm-tiny", texts, [*LM, *PRETRAINED, "workload.model.lora={rank: 2}"], PROMPTS, models.causal
    ),
    "vision": Case("vision-small", pictures, [], PIXELS),
    "speech": Case("speech-small", sounds, [CTC, *SPEECH], SOUND),
    "speech-wav2vec2": Case(
        "speech-small",
        sounds,
        ["workload.model={{kind: ctc, pretrained: '{model}', alphabet: null}}", *SPEECH],
        SOUND,
        models.wav2vec2,
    ),
    "speech-letters": Case(
        "speech-small",
        sounds,
        ["workload.model={{kind: ctc, pretrained: '{model}', alphabet: abc}}", *SPEECH],
        SOUND,
        models.wav2vec2,
    ),
    "speech-whisper": Case(
        "speech-small",
        sounds,
        [
            "workload.model={{kind: seq2seq, pretrained: '{model}', language: de, most_tokens: 8}}",
            "workload.data.longest=4",
            *SPEECH,
        ],
        SOUND,
        models.whisper,
    ),
}


LABELS = {"vision-small": {"label": "b"}, "speech-small": {"text": "hallo welt"}}
"""Targets of the rows, by recipe."""


def served(folder: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The predictions over HTTP."""

    async def ask() -> list[dict[str, Any]]:
        handler = RequestHandler(open_predictor(folder), Limits())
        async with HandlerClient(handler) as client:
            reply = await client.post("/predict", content=json.dumps({"rows": rows}))
            assert reply.status_code == 200, reply.text
            return list(reply.json()["predictions"])

    return asyncio.run(ask())


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Path]:
    """A cache for the training, and a function that replaces it by one that does not exist."""
    monkeypatch.setenv("TRAINFLEET_CACHE", str(tmp_path / "cache"))

    def replace() -> Path:
        shutil.rmtree(tmp_path / "cache")
        monkeypatch.setenv("TRAINFLEET_CACHE", str(tmp_path / "empty"))
        return tmp_path / "empty"

    return replace


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_model_predicts_the_same_without_its_training_data(
    case: Case, tmp_path: Path, no_cache: Callable[[], Path]
) -> None:
    data, base = tmp_path / "data", tmp_path / "base"
    data.mkdir()
    case.make(data)
    if case.model is not None:
        base.mkdir()
        case.model(base)
    overrides = [each.format(model=base) if "{model}" in each else each for each in case.overrides]
    recipe = load_recipe(case.recipe, [f"workload.data.source={data}", *SHORT, *overrides])
    train(recipe, RunContext(tmp_path / "run", cache=default_cache()))
    with_data = load_run(str(tmp_path / "run"))
    batch = with_data.workload.read(case.rows)
    with torch.no_grad():
        before = with_data.workload.predict(with_data.model, batch)
    publish(str(tmp_path / "run"), tmp_path / "published")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row | LABELS.get(case.recipe, {})) + "\n" for row in case.rows))
    measured = evaluate_rows(str(tmp_path / "run"), str(rows))
    assert measured["rows"] == len(case.rows)
    assert set(measured["metrics"]) == {"loss", *recipe.workload.metric_names}

    data.rename(tmp_path / "away")
    empty = no_cache()
    assert open_predictor(str(tmp_path / "run"))(case.rows) == before
    assert served(str(tmp_path / "run"), case.rows) == before

    for folder in (tmp_path / "run", base):  # a published folder needs neither
        shutil.rmtree(folder, ignore_errors=True)
    moved = (tmp_path / "published").rename(tmp_path / "elsewhere")
    assert served(str(moved), case.rows) == before
    assert evaluate_rows(str(moved), str(rows))["metrics"] == pytest.approx(measured["metrics"], rel=1e-5)
    assert not empty.exists()


def test_a_checkpoint_of_an_earlier_version_is_used_with_its_data(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from trainfleet.training.checkpoint import Checkpoints

    before = open_predictor(str(pictures))(PIXELS)
    read = Checkpoints.read

    def without_assets(self: Checkpoints, name: str) -> dict[str, Any]:
        plain = read(self, name)
        del plain["shared"]["assets"]
        return plain

    monkeypatch.setattr(Checkpoints, "read", without_assets)
    found = open_predictor(str(pictures), cache=tmp_path / "new")
    assert found(PIXELS) == before
    assert (tmp_path / "new").exists()


def test_a_published_folder_that_lost_an_asset_is_refused(pictures_copy: Path) -> None:
    folder = publish(str(pictures_copy)).folder
    asset = folder / "assets" / "classes.json"
    asset.write_text(json.dumps(list("9876543210")))
    with pytest.raises(InputError, match=r"classes\.json: has other content"):
        open_predictor(str(folder))
    asset.unlink()
    with pytest.raises(InputError, match="not complete"):
        open_predictor(str(folder))


def test_the_metrics_of_rows_are_those_of_the_same_samples_of_a_split(
    pictures_copy: Path, tmp_path: Path
) -> None:
    run = load_run(str(pictures_copy))
    count = run.workload.size("test")
    batch = run.workload.batch("test", range(count))
    names = run.workload.data_info()["classes"]
    rows = [
        {"image": image[0].tolist(), "label": names[label]}
        for image, label in zip(batch["image"], batch["label"].tolist(), strict=True)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = evaluate_rows(str(pictures_copy), str(tmp_path / "rows.jsonl"))
    split = evaluate(str(pictures_copy))
    assert found["rows"] == count
    assert found["metrics"] == pytest.approx(
        {name.removeprefix("test/"): value for name, value in split.metrics.items()}, rel=1e-5
    )
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows[0] | {"label": "eleven"}))
    with pytest.raises(InputError, match="label `eleven` is not a class of the model"):
        evaluate_rows(str(pictures_copy), str(tmp_path / "rows.jsonl"))


def test_every_token_of_a_text_is_measured_once(run_dir: Path) -> None:
    workload: Any = load_run(str(run_dir)).workload
    context = workload.settings.model.context
    texts = ["a" * (2 * context + 5), "", "short", "b" * context]
    batches = list(workload.read_samples([{"text": text} for text in texts]))
    targets = [target for batch in batches for target in batch["targets"].flatten().tolist()]
    expected = [token for text in texts for token in [*text.encode(), workload.encoder.end]]
    assert sorted(targets) == sorted(expected)
    assert max(batch["inputs"].shape[1] for batch in batches) == context
