"""Each workload on two ranks has the losses and error rates of one rank, with ddp and fsdp, for full models
and LoRA.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.training_runs import metric_values, rows_of, train_all
from tests.training.workloads import models
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe

SHORT = (
    "scaling.workers=2",
    "log.tensorboard=false",
    "log.every=1",
    "steps=3",
    "validation.every=3",
    "checkpoint.every=3",
    "optimizer.warmup=1",
)
SPEECH = (
    "batch.global_batch=4",
    "batch.micro_batch=2",
    "validation.samples=5",
    "workload.data.utterances=40",
    "workload.data.longest=4",
    "workload.data.validation_share=0.2",
    "workload.data.test_share=0.2",
    "workload.data.speeds=[170]",
)


def recipes(folder: Path, text: Path) -> dict[str, Recipe]:
    """One recipe per kind of model, by name."""
    words = (
        f"workload.data.source={text}",
        "workload.data.glob='**/*.txt'",
        "workload.data.validation_share=0.15",
        "workload.data.test_share=0.15",
    )
    causal, wav2vec2, whisper = (
        models.causal(folder / "causal"),
        models.wav2vec2(folder / "wav2vec2"),
        models.whisper(folder / "whisper"),
    )
    pretrained = (
        f"workload.model.pretrained={causal}",
        "workload.data.tokens=model",
        "workload.model.context=16",
        *words,
    )
    ctc = f"{{kind: ctc, pretrained: {wav2vec2}, alphabet: null}}"
    seq2seq = f"{{kind: seq2seq, pretrained: {whisper}, alphabet: null, language: german, freeze_encoder: false, most_tokens: 6}}"
    return {
        "cnn": load_recipe(
            "vision-small",
            [*SHORT, "workload.model={kind: cnn, width: 8, stages: [1, 1]}", "workload.data.shift=0"],
        ),
        "vit": load_recipe(
            "vision-small",
            [*SHORT, "workload.model={kind: vit, width: 16, layers: 2}", "workload.data.shift=0"],
        ),
        "conformer": load_recipe(
            "speech-small", [*SHORT, *SPEECH, "workload.model={width: 16, layers: 2, heads: 2}"]
        ),
        "causal": load_recipe("lm-tiny", [*SHORT, *pretrained]),
        "lora": load_recipe("lm-tiny", [*SHORT, *pretrained, "workload.model.lora={rank: 2}"]),
        "whisper": load_recipe("speech-small", [*SHORT, *SPEECH, f"workload.model={seq2seq}"]),
        "wav2vec2": load_recipe("speech-small", [*SHORT, *SPEECH, f"workload.model={ctc}"]),
    }


@pytest.mark.deep
def test_losses_and_metrics_do_not_depend_on_the_strategy(
    tmp_path: Path, text_folder: Path, cache: Path
) -> None:
    chosen = recipes(tmp_path / "models", text_folder)
    both = {
        f"{name}-{strategy}": recipe.model_copy(update={"strategy": strategy})
        for name, recipe in chosen.items()
        for strategy in ("ddp", "fsdp")
    }
    train_all(both, tmp_path, cache, world_size=2)
    for name in chosen:
        ddp, fsdp = (rows_of(tmp_path / f"{name}-{strategy}") for strategy in ("ddp", "fsdp"))
        assert len(metric_values(ddp, "loss")) == 3
        assert metric_values(fsdp, "loss") == pytest.approx(metric_values(ddp, "loss"), rel=2e-4), name
        figures = [
            {key: value for key, value in rows[-1].items() if key.startswith("test/")} for rows in (ddp, fsdp)
        ]
        assert figures[1] == pytest.approx(figures[0], rel=1e-2, abs=1e-3), name
