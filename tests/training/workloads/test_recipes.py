"""The recipes of the built-in workloads: each trains on this machine and beats the baseline that its file
names.

Each uses one process and one thread, so two of them can run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.trainer.context import RunResult

ONE = ("scaling.workers=1", "log.tensorboard=false")


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_vision_small_beats_the_nearest_mean_image(run: Callable[..., RunResult], tmp_path: Path) -> None:
    result = run(load_recipe("vision-small", ONE), tmp_path / "run")
    assert result.baseline["majority_accuracy"] < 0.2
    assert result.baseline["nearest_mean_accuracy"] < 0.95
    assert result.metrics["validation/accuracy"] > result.baseline["nearest_mean_accuracy"] + 0.03
    assert result.metrics["test/f1"] > 0.9


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_speech_small_transcribes_most_words_of_unseen_sentences(
    run: Callable[..., RunResult], tmp_path: Path
) -> None:
    result = run(load_recipe("speech-small", ONE), tmp_path / "run")
    assert result.baseline["one_sentence_wer"] > 0.7
    assert result.metrics["validation/wer"] < 0.2
    assert result.metrics["test/cer"] < 0.1
