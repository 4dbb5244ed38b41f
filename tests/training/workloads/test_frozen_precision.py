"""With `precision: bf16`, what a speech or image model does not train is kept in bf16, and all else in fp32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.training_runs import StopAfter, metric_values, rows_of
from tests.training.workloads import models, test_pretrained_images, test_pretrained_speech
from tests.training.workloads.test_speech import recipe as speech_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer import loop
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.trainer.strategies import make_strategy

COURSE = ("steps=4", "log.every=1", "validation.every=4", "checkpoint.every=2", "optimizer.warmup=1")


def speech(folder: Path, kind: str, more: str) -> Recipe:
    test_pretrained_speech.made(kind, folder)
    model = test_pretrained_speech.model_settings(kind, folder, more)
    return speech_recipe(model, "workload.data.longest=4", *COURSE)


CASES: dict[str, Callable[[Path], Recipe]] = {
    "whisper, lora": lambda folder: speech(folder, "seq2seq", "lora: {rank: 4}"),
    "whisper, frozen encoder": lambda folder: speech(folder, "seq2seq", "freeze_encoder: true"),
    "wav2vec2, lora": lambda folder: speech(folder, "new head", "lora: {rank: 4}"),
    "vit, lora": lambda folder: test_pretrained_images.recipe(
        models.vit(folder), ", lora: {rank: 4}", *COURSE
    ),
    "vit, frozen encoder": lambda folder: test_pretrained_images.recipe(
        models.vit(folder), ", freeze_encoder: true", *COURSE
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_not_trained_is_kept_in_bf16_with_about_the_losses_of_fp32(
    tmp_path: Path,
    run: Callable[..., RunResult],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    strategy: str,
) -> None:
    types: dict[str, set[torch.dtype]] = {}

    def noted(*args: Any) -> Any:
        made = make_strategy(*args)
        types.clear()
        for each in made.module.parameters():
            kind = "trained" if each.requires_grad else "matrix" if each.ndim > 1 else "small"
            types.setdefault(kind, set()).add(each.dtype)
        types["buffers"] = {each.dtype for each in made.module.buffers() if each.is_floating_point()}
        return made

    monkeypatch.setattr(loop, "make_strategy", noted)
    whole = CASES[name](tmp_path / "model").model_copy(update={"strategy": strategy})
    run(whole, tmp_path / "fp32")
    half = whole.model_copy(update={"precision": "bf16"})
    run(half, tmp_path / "bf16")
    assert types["trained"] == types["small"] == {torch.float32}
    assert types["matrix"] == {torch.bfloat16}
    assert types["buffers"] <= {torch.float32}
    found, expected = (metric_values(rows_of(tmp_path / each), "loss") for each in ("bf16", "fp32"))
    assert found == pytest.approx(expected, rel=0.03)
    run(half, tmp_path / "parts", should_stop=StopAfter(3))
    assert run(half, tmp_path / "parts").resumed_from == 3
    assert metric_values(rows_of(tmp_path / "parts"), "loss") == found
