"""Pretrained speech models with a frozen encoder and by LoRA, exported for transformers, and folders that do not
fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training.checkpoint_reader import tensors_of
from tests.training.training_runs import StopAfter, metric_values, rows_of
from tests.training.workloads import models
from tests.training.workloads.test_speech import recipe, speech
from trainfleet.errors import InputError
from trainfleet.training.inference.loaded import load_run
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.trainer.context import RunResult

SETTINGS = {
    "ctc": "{kind: ctc, pretrained: FOLDER, alphabet: null, MORE}",
    "new head": "{kind: ctc, pretrained: FOLDER, alphabet: abcdefghijklmnopqrstuvwxyzäöüß, MORE}",
    "seq2seq": "{kind: seq2seq, pretrained: FOLDER, alphabet: null, language: german, most_tokens: 12, MORE}",
}


def model_settings(kind: str, folder: Path, more: str = "freeze_encoder: false") -> str:
    return f"workload.model={SETTINGS[kind].replace('FOLDER', str(folder)).replace('MORE', more)}"


def made(kind: str, folder: Path) -> Path:
    return models.whisper(folder) if kind == "seq2seq" else models.wav2vec2(folder)


@pytest.mark.parametrize("kind", SETTINGS)
def test_weights_of_a_file_in_half_precision_are_trained_in_fp32(
    cache: Path, tmp_path: Path, kind: str
) -> None:
    folder = made(kind, tmp_path / "model")
    models.halve(folder)
    model = speech(cache, model_settings(kind, folder), "workload.data.longest=4").build_model()
    assert {each.dtype for each in model.parameters()} == {torch.float32}


@pytest.mark.deep
@pytest.mark.parametrize("kind", SETTINGS)
def test_adapters_are_trained_resumed_merged_and_loaded_by_transformers(
    cache: Path, run: Callable[..., RunResult], tmp_path: Path, kind: str
) -> None:
    import transformers

    folder = made(kind, tmp_path / "model")
    lora = recipe(
        model_settings(kind, folder, "lora: {rank: 4}"),
        "workload.data.longest=4",
        "optimizer.lr=2e-2",
        "steps=8",
        "log.every=1",
        "validation.every=8",
        "checkpoint.every=4",
    )
    whole = run(lora, tmp_path / "whole")
    losses = metric_values(rows_of(tmp_path / "whole"), "loss")
    assert sum(losses[-3:]) < sum(losses[:3])
    run(lora, tmp_path / "parts", should_stop=StopAfter(6))
    assert run(lora, tmp_path / "parts").metrics == whole.metrics
    saved = {
        name for name in tensors_of(tmp_path / "whole" / "checkpoints" / "step-00000008") if "model." in name
    }
    trained_parts = ("lora_", "lm_head") if kind == "new head" else ("lora_",)
    assert saved
    assert all(any(part in name for part in trained_parts) for name in saved if name.startswith("model."))
    assert any("lm_head" in name for name in saved) == (kind == "new head")
    trained: Any = load_run(str(tmp_path / "whole"), "newest", cache=cache)
    trained.workload.export(trained.model, tmp_path / "export")
    batch = trained.workload.batch("test", [0, 1])
    auto = transformers.AutoModelForSpeechSeq2Seq if kind == "seq2seq" else transformers.AutoModelForCTC
    theirs = auto.from_pretrained(tmp_path / "export").eval()
    back = trained.workload.import_(tmp_path / "export")
    with torch.no_grad():
        if kind == "seq2seq":
            before = torch.tensor([trained.workload.recogniser.prefix] * 2)
            expected = trained.model(batch["sound"], before)
            found = theirs(batch["sound"], decoder_input_ids=before).logits
            again = back(batch["sound"], before)
        else:
            expected, _ = trained.model(batch["sound"], batch["attention_mask"])
            found = theirs(batch["sound"], attention_mask=batch["attention_mask"]).logits
            again, _ = back(batch["sound"], batch["attention_mask"])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(again, expected, atol=1e-4, rtol=1e-3)


def _without(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def _config(**changes: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _no_tokenizer(folder: Path) -> None:
    for name in (
        "tokenizer_config.json",
        "tokenizer.json",
        "vocab.json",
        "merges.txt",
        "special_tokens_map.json",
    ):
        (folder / name).unlink(missing_ok=True)


def _unchanged(_: Path) -> None:
    pass


MISTAKES: dict[str, tuple[str, str, Callable[[Path], Any], tuple[str, ...], str]] = {
    "no config": ("ctc", "ctc", _without("config.json"), (), r"cannot load the model.*no config\.json"),
    "no extractor": (
        "seq2seq",
        "seq2seq",
        _without("preprocessor_config.json"),
        (),
        r"cannot load the feature extractor.*has no preprocessor_config\.json",
    ),
    "no tokenizer": (
        "ctc",
        "ctc",
        _no_tokenizer,
        (),
        r"cannot load the tokenizer.*has no tokenizer_config\.json",
    ),
    "a Whisper as CTC": (
        "seq2seq",
        "ctc",
        _unchanged,
        (),
        r"is a whisper model, not a speech model with a CTC head.*workload\.model\.kind=seq2seq",
    ),
    "a wav2vec2 as seq2seq": (
        "ctc",
        "seq2seq",
        _unchanged,
        (),
        r"is a wav2vec2 model, not a speech encoder-decoder.*workload\.model\.kind=ctc",
    ),
    "a smaller head": (
        "ctc",
        "ctc",
        _config(vocab_size=20),
        (),
        r"the tokenizer does not fit the model.*up to number 32, the model has 20.*workload\.model\.alphabet",
    ),
    "longer recordings": (
        "seq2seq",
        "seq2seq",
        _unchanged,
        ("workload.data.longest=9",),
        r"hears 4 s, the data has recordings of up to 9 s.*workload\.data\.longest=4",
    ),
    "more tokens": (
        "seq2seq",
        "seq2seq",
        _config(max_target_positions=10),
        (),
        r"12 tokens and 4 before them.*has 10 positions.*workload\.model\.most_tokens=6",
    ),
}


@pytest.mark.parametrize(("make", "kind", "change", "more", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_folder_that_does_not_fit_is_one_clear_error_before_training(
    cache: Path,
    tmp_path: Path,
    make: str,
    kind: str,
    change: Callable[[Path], Any],
    more: tuple[str, ...],
    message: str,
) -> None:
    folder = made(make, tmp_path / "model")
    change(folder)
    with pytest.raises(InputError, match=f"(?s){message}") as caught:
        speech(cache, model_settings(kind, folder), "workload.data.longest=4", *more)
    assert len(caught.value.problems) == 1


def test_a_language_model_is_not_a_speech_model(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a llama model, not a speech encoder-decoder"):
        speech(cache, model_settings("seq2seq", models.causal(tmp_path / "model")))


@pytest.mark.parametrize("kind", ["ctc", "seq2seq"])
def test_weights_of_another_model_are_rejected(cache: Path, tmp_path: Path, kind: str) -> None:
    folder = made(kind, tmp_path / "model")
    held = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in held.items() if "layers.0" not in name}
    assert len(kept) < len(held)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    workload = speech(cache, model_settings(kind, folder), "workload.data.longest=4")
    with pytest.raises(InputError, match="is not complete"):
        workload.build_model()


def test_a_transcript_with_more_tokens_than_the_model_has_positions_is_named(
    cache: Path, tmp_path: Path
) -> None:
    folder = models.whisper(tmp_path / "model")
    recogniser = speech(cache, model_settings("seq2seq", folder), "workload.data.longest=4").recogniser
    with pytest.raises(InputError, match=r"(?s)too long.*has 74 tokens, the model has 64 positions"):
        recogniser.targets("a" * 70)


def test_lora_without_a_pretrained_model_is_reported() -> None:
    with pytest.raises(InputError, match=r"workload\.model\.lora: does nothing without a pretrained model"):
        load_recipe("speech-small", ["workload.model.lora={rank: 2}"])
