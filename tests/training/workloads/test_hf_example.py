"""examples/hf_vision.py: a Hugging Face model in a workload trains, and transformers loads its export."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.training_runs import metric_values, rows_of
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.trainer.context import RunResult

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_example_trains_and_transformers_loads_its_export(
    run: Callable[..., RunResult], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    from trainfleet.training.inference.loaded import load_run

    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", list(sys.path))
    small = [
        "scaling.workers=1",
        "log.tensorboard=false",
        "workload.model={width: 32, layers: 1, heads: 2}",
        "steps=80",
        "optimizer.warmup=5",
    ]
    recipe = load_recipe(
        "hf_vision.yaml",
        [*small, "optimizer.lr=5e-3", "log.every=1", "checkpoint.every=80", "validation.every=80"],
    )
    result = run(recipe, tmp_path / "run")
    losses = metric_values(rows_of(tmp_path / "run"), "loss")
    assert sum(losses[-10:]) < 0.93 * sum(losses[:10]), losses
    assert {"test/accuracy", "test/f1"} <= set(result.metrics)
    trained: Any = load_run(str(tmp_path / "run"), "newest", cache=cache)
    trained.workload.export(trained.model, tmp_path / "export")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "export").eval()
    images = trained.workload.batch("test", range(8))["image"]
    expected = trained.model(images)
    torch.testing.assert_close(theirs(pixel_values=(images.float() - 127.5) / 64).logits, expected)
    assert torch.equal(trained.workload.import_(tmp_path / "export")(images), expected)
    assert theirs.config.id2label[3] == "3"
