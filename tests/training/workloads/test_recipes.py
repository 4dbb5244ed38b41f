"""The recipes of the workloads as they stand: each trains on this machine and beats the trivial model that
its own file names.

One process and one thread each, so two of them go side by side.
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
def test_vision_small_beats_the_nearest_mean_picture(run: Callable[..., RunResult], tmp_path: Path) -> None:
    result = run(load_recipe("vision-small", ONE), tmp_path / "run")
    assert result.baseline["majority_accuracy"] < 0.2
    assert result.baseline["nearest_mean_accuracy"] < 0.95
    assert result.metrics["validation/accuracy"] > result.baseline["nearest_mean_accuracy"] + 0.03
    assert result.metrics["test/f1"] > 0.9


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_speech_small_writes_most_words_of_sentences_that_it_never_heard(
    run: Callable[..., RunResult], tmp_path: Path
) -> None:
    result = run(load_recipe("speech-small", ONE), tmp_path / "run")
    assert result.baseline["one_sentence_wer"] > 0.7
    assert result.metrics["validation/wer"] < 0.2
    assert result.metrics["test/cer"] < 0.1
