"""Speech to text: synthetic and recorded data, independence of padding, metrics, and pretrained models."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.training_runs import metric_values, rows_of
from tests.training.workloads import models
from trainfleet.errors import InputError
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.workloads.speech.asr_models import collapsed, load_exported
from trainfleet.training.workloads.speech.audio import AudioTransform, as_int16, resampled, to_mono
from trainfleet.training.workloads.speech.conformer import log_mel, steps_of
from trainfleet.training.workloads.speech.settings import SoundSettings, SpeechSettings
from trainfleet.training.workloads.speech.synthetic_speech import listing, sentences, speak
from trainfleet.training.workloads.speech.workload import Speech

TINY = (
    "workload.model={kind: ctc, width: 16, layers: 1, heads: 2, mels: 16}",
    *(
        "workload.data.utterances=60",
        "workload.data.validation_share=0.15",
        "workload.data.test_share=0.15",
        "workload.data.speeds=[170]",
    ),
    *(
        "scaling.workers=1",
        "log.tensorboard=false",
        "batch.global_batch=4",
        "batch.micro_batch=4",
        "optimizer.warmup=2",
        "validation.samples=6",
    ),
)


def recipe(*overrides: str) -> Recipe:
    return load_recipe("speech-small", [*TINY, *overrides])


def speech(cache: Path, *overrides: str) -> Speech:
    settings = recipe(*overrides).workload
    assert isinstance(settings, SpeechSettings)
    return Speech(settings, cache)


def wav(sound: np.ndarray[Any, Any], rate: int) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(sound.astype("<i2").tobytes())
    return buffer.getvalue()


def test_synthetic_speech_is_deterministic_and_differs_by_voice() -> None:
    ways = [("de+f2", 150), ("de+m3", 150), ("de+f2", 110)]
    first = [speak("guten morgen", *way)[0] for way in ways]
    again = [speak("guten morgen", *way)[0] for way in reversed(ways)][::-1]
    assert all((one == other).all() for one, other in zip(first, again, strict=True))
    assert len({each.tobytes() for each in first}) == 3
    assert len(first[2]) > 1.2 * len(first[0])
    with pytest.raises(InputError, match="no such voice"):
        speak("guten morgen", "klingonisch", 150)


def test_the_sentences_of_the_splits_do_not_overlap() -> None:
    assert len(sentences()) == len(set(sentences())) > 4000
    rows = [json.loads(line) for line in listing(SoundSettings(utterances=9000)).splitlines()]
    sentences_of = {
        split: {row["text"] for row in rows if row["split"] == split}
        for split in ("train", "validation", "test")
    }
    assert not sentences_of["train"] & (sentences_of["validation"] | sentences_of["test"])
    assert min(map(len, sentences_of.values())) > 200
    assert {row["voice"] for row in rows} == set(SoundSettings().voices)


def test_blocks_hold_the_synthetic_speech(cache: Path) -> None:
    workload = speech(cache)
    rows = workload._blocks["train"].rows([0, 5])
    listed = {row["text"]: row for row in map(json.loads, listing(workload.settings.data).splitlines())}
    for text, audio in zip(rows["text"], rows["audio"], strict=True):
        sound, rate = speak(text, listed[text]["voice"], listed[text]["speed"])
        assert (audio == as_int16(resampled(sound.astype(np.float32) / 32768, rate, 16_000))).all()


def test_resampling_keeps_the_pitch_and_loudness_of_a_tone() -> None:
    for rate, target_rate in ((22_050, 16_000), (8_000, 16_000), (48_000, 16_000)):
        tone = np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32)
        found = resampled(tone, rate, target_rate)
        assert len(found) == target_rate
        expected = np.sin(2 * np.pi * 440 * np.arange(target_rate) / target_rate)
        assert np.abs(found - expected)[200:-200].max() < 0.01


def test_padding_does_not_change_the_logits_of_an_utterance(cache: Path) -> None:
    workload = speech(cache)
    torch.manual_seed(0)
    model = workload.build_model().eval()
    rows = workload._blocks["train"].rows(range(8))["audio"]
    short, long = min(rows, key=len), max(rows, key=len)
    assert len(long) > 1.2 * len(short)
    alone, padded = (workload.recogniser.inputs(each) for each in ([short], [short, long]))
    frames = [log_mel(each["sound"] / 32768, each["length"], 16_000, 16) for each in (alone, padded)]
    logits = [model(*each) for each in frames]
    steps = int(steps_of(frames[0][1])[0])
    torch.testing.assert_close(logits[1][0, :steps], logits[0][0, :steps], atol=1e-4, rtol=1e-4)


def test_repeated_letters_collapse_unless_a_blank_separates_them() -> None:
    best = torch.tensor([[1, 1, 0, 1, 2, 2, 0, 3], [3, 0, 0, 1, 1, 1, 2, 2]])
    logits = torch.nn.functional.one_hot(best, 4).float()
    assert collapsed(logits, torch.tensor([8, 4]), blank=0) == [[1, 1, 2, 3], [3, 1]]


def test_error_rates_cover_all_utterances_and_the_baseline_is_one_sentence(cache: Path) -> None:
    from torchmetrics.functional.text import word_error_rate

    workload = speech(cache)
    indices = list(range(workload.size("validation")))
    texts_of_validation = [
        workload.recogniser.plain(text) for text in workload._blocks["validation"].rows(indices)["text"]
    ]
    texts = [
        workload.recogniser.plain(text)
        for text in workload._blocks["train"].rows(range(workload.size("train")))["text"]
    ]
    baseline = workload.baseline(indices)["one_sentence_wer"]
    rates = [float(word_error_rate([text] * len(texts_of_validation), texts_of_validation)) for text in texts]
    assert min(rates) <= baseline <= max(rates)
    assert baseline < 1.2
    model = workload.build_model().eval()
    batch = workload.batch("validation", indices)
    written, target = workload.forward_loss(model, batch).metric_inputs["wer"]
    assert target == texts_of_validation
    assert written == [
        workload.recogniser.plain(text) for text in workload.recogniser.transcripts(model, batch)
    ]
    assert workload.forward_loss(model.train(), batch).metric_inputs == {}


def test_a_few_steps_lower_the_loss_and_an_exact_resume_has_the_same_metrics(
    cache: Path, run: Callable[..., RunResult], tmp_path: Path
) -> None:
    small = recipe("steps=8", "validation.every=8", "checkpoint.every=4", "log.every=1", "optimizer.lr=1e-2")
    whole = run(small, tmp_path / "whole")
    losses = metric_values(rows_of(tmp_path / "whole"), "loss")
    assert losses[-1] < 0.85 * losses[0]
    asked = iter([False] * 5 + [True] * 9)
    run(small, tmp_path / "parts", should_stop=lambda: next(asked))
    assert run(small, tmp_path / "parts").metrics == whole.metrics
    assert {"validation/wer", "validation/cer", "test/wer"} <= set(whole.metrics)


def test_an_export_loads_and_gives_the_same_transcripts(cache: Path, tmp_path: Path) -> None:
    workload = speech(cache)
    torch.manual_seed(0)
    model = workload.build_model().eval()
    workload.export(model, tmp_path)
    sound, rate = speak("guten abend", "de+f2", 150)
    (tmp_path / "abend.wav").write_bytes(wav(sound, rate))
    rows = [
        {"audio": str(tmp_path / "abend.wav")},
        {"audio": sound, "rate": rate},
        {"audio": wav(sound, rate)},
    ]
    batch = workload.read(rows)
    assert (batch["sound"] == batch["sound"][0]).all()
    expected = workload.predict(model, batch)
    back, letters = load_exported(tmp_path)
    assert letters.transcripts(back, batch) == [each["text"] for each in expected]
    assert workload.predict(workload.import_(tmp_path), batch) == expected


NOT_AUDIO: list[tuple[dict[str, Any], str]] = [
    ({"audio": b"no sound"}, "is not audio"),
    ({"audio": "/nowhere.wav"}, "cannot be read"),
    ({"audio": np.zeros(9, np.float32)}, "has no rate"),
    ({"audio": np.full(9, np.nan), "rate": 16_000}, "holds NaN or Inf samples"),
    ({"audio": np.zeros((2, 2, 2)), "rate": 16_000}, "is not audio"),
    ({}, "is not audio"),
]


def test_every_row_that_is_not_audio_is_reported_with_the_reason(cache: Path) -> None:
    with pytest.raises(InputError) as caught:
        speech(cache).read(
            [{"audio": np.zeros(999, np.int16), "rate": 16_000}, *(row for row, _ in NOT_AUDIO)]
        )
    found = {problem.where: problem.what for problem in caught.value.problems}
    assert set(found) == {f"row {number}" for number in range(1, len(NOT_AUDIO) + 1)}
    for number, (_, message) in enumerate(NOT_AUDIO, 1):
        assert message in found[f"row {number}"]


def recordings(folder: Path, count: int = 24) -> Path:
    """Spoken sentences as WAV files, each with its text in a .txt of the same name."""
    folder.mkdir()
    for number, text in enumerate(sentences()[:count]):
        (folder / f"{number:02}.wav").write_bytes(wav(*speak(text, "de", 170)))
        (folder / f"{number:02}.txt").write_text(text)
    return folder


SHARES = ("workload.data.validation_share=0.2", "workload.data.test_share=0.2", "workload.data.split_seed=1")


def test_a_folder_of_audio_is_a_data_set_and_damaged_or_untranscribed_files_are_reported(
    cache: Path, tmp_path: Path
) -> None:
    folder = recordings(tmp_path / "sounds")
    overrides = (f"workload.data.source={folder}", *SHARES)
    workload = speech(cache, *overrides)
    assert sum(workload.size(split) for split in ("train", "validation", "test")) == 24
    (folder / "03.wav").write_bytes((folder / "03.wav").read_bytes()[:5000])
    (folder / "04.txt").unlink()
    with pytest.raises(InputError) as caught:
        speech(cache, *overrides)
    assert [problem.where for problem in caught.value.problems[:2]] == ["03.wav", "04.wav"]


def test_a_common_voice_folder_keeps_its_splits(cache: Path, tmp_path: Path) -> None:
    clips = tmp_path / "clips"
    recordings(clips, 6)
    tables = {"train": (0, 1, 2), "dev": (3, 4), "test": (5,)}
    for name, numbers in tables.items():
        lines = [f"someone\t{number:02}.wav\t{sentences()[number].capitalize()}.\t2\n" for number in numbers]
        (tmp_path / f"{name}.tsv").write_text("client_id\tpath\tsentence\tup_votes\n" + "".join(lines))
    workload = speech(cache, f"workload.data.source={tmp_path}", "workload.data.text=sentence")
    assert [workload.size(split) for split in ("train", "validation", "test")] == [3, 2, 1]
    batch = workload.batch("test", [0])
    assert workload._reference_texts(batch["target"]) == [sentences()[5]]


def test_audio_that_is_too_short_or_too_long_is_left_out_and_texts_are_normalized() -> None:
    transform = AudioTransform("audio", "text", 16_000, 0.5, 1.0)
    rows = [
        {
            "name": str(seconds),
            "audio": np.zeros(int(16_000 * seconds), np.int16),
            "rate": 16_000,
            "text": " a  b\n",
        }
        for seconds in (0.2, 0.7, 2)
    ]
    short, fitting, long = transform(rows)
    assert short is None
    assert long is None
    assert isinstance(fitting, dict)
    assert fitting["text"] == "a b"


def test_audio_is_one_channel_from_minus_one_to_one() -> None:
    stereo = np.stack([np.full(5, 16384, np.int16), np.zeros(5, np.int16)], axis=1)
    sound, rate = to_mono({"array": stereo, "sampling_rate": 8_000})
    assert (sound.tolist(), rate) == ([0.25] * 5, 8_000)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("family", "alphabet"),
    [
        ("Wav2Vec2", "null"),
        ("Wav2Vec2", "abcdefghijklmnopqrstuvwxyzäöüß"),
        ("Hubert", "null"),
        ("Hubert", "abcdefghijklmnopqrstuvwxyzäöüß"),
    ],
)
def test_a_ctc_model_is_trained_exported_and_loaded_by_transformers(
    cache: Path, run: Callable[..., RunResult], tmp_path: Path, family: str, alphabet: str
) -> None:
    import transformers

    from trainfleet.training.inference.loaded import load_run

    folder = models.wav2vec2(tmp_path / "model", family=family)
    overrides = (
        f"workload.model={{kind: ctc, pretrained: {folder}, alphabet: {alphabet}, freeze_encoder: false}}",
        "optimizer.lr=1e-2",
    )
    run(
        recipe(*overrides, "steps=6", "log.every=1", "validation.every=6", "checkpoint.every=6"),
        tmp_path / "run",
    )
    losses = metric_values(rows_of(tmp_path / "run"), "loss")
    assert losses[-1] < losses[0]
    trained: Any = load_run(str(tmp_path / "run"), "newest", cache=cache)
    trained.workload.export(trained.model, tmp_path / "export")
    theirs = transformers.AutoModelForCTC.from_pretrained(tmp_path / "export").eval()
    assert type(theirs).__name__ == f"{family}ForCTC"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "export")
    batch = trained.workload.batch("test", [0, 1])
    logits, steps = trained.model(batch["sound"], batch["attention_mask"])
    torch.testing.assert_close(theirs(batch["sound"], attention_mask=batch["attention_mask"]).logits, logits)
    written = [each["text"] for each in trained.workload.predict(trained.model, batch)]
    decoded = [
        tokenizer.decode(row[:count]) for row, count in zip(logits.argmax(-1), steps.tolist(), strict=True)
    ]
    assert [trained.workload.recogniser.plain(each) for each in decoded] == written


def test_a_whisper_is_trained_and_transcribes_as_in_transformers(
    cache: Path, run: Callable[..., RunResult], tmp_path: Path
) -> None:
    import transformers

    from trainfleet.training.inference.loaded import load_run

    folder = models.whisper(tmp_path / "model")
    model = f"{{kind: seq2seq, pretrained: {folder}, alphabet: null, language: german, freeze_encoder: false, most_tokens: 12}}"
    run(
        recipe(
            f"workload.model={model}",
            "workload.data.longest=4",
            "optimizer.lr=1e-2",
            "steps=6",
            "log.every=1",
            "validation.every=6",
            "checkpoint.every=6",
        ),
        tmp_path / "run",
    )
    losses = metric_values(rows_of(tmp_path / "run"), "loss")
    assert losses[-1] < losses[0]
    trained: Any = load_run(str(tmp_path / "run"), "newest", cache=cache)
    recogniser = trained.workload.recogniser
    assert recogniser.prefix == [257, 260, 262, 263]
    target = recogniser.targets("Guten Tag")
    assert recogniser.spelt(target) == "guten tag"
    trained.workload.export(trained.model, tmp_path / "export")
    theirs = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path / "export").eval()
    batch = trained.workload.batch("test", [0, 1])
    prefix = torch.tensor([recogniser.prefix] * 2)
    expected = transformers.GenerationMixin.generate(
        theirs,
        batch["sound"],
        decoder_input_ids=prefix,
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=256,
        pad_token_id=256,
    )
    texts = [recogniser.tokenizer.decode(row, skip_special_tokens=True).strip() for row in expected.tolist()]
    assert [each["text"] for each in trained.workload.predict(trained.model, batch)] == texts


MISTAKES = [
    ("workload.model.kind=seq2seq", "workload.model.kind: there is no small model of this kind"),
    ("workload.model.kernel=4", "workload.model.kernel: 4 has no middle"),
    ("workload.model.alphabet=null", "workload.model.alphabet: a model without pretraining needs letters"),
    ("workload.data.shortest=30", "workload.data.shortest: nothing is longer than 30.0 s"),
]


@pytest.mark.parametrize(("override", "message"), MISTAKES)
def test_conflicting_settings_are_reported(override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("speech-small", [override])
    assert message in str(caught.value)


def test_a_missing_model_or_one_with_another_rate_is_one_clear_error(cache: Path, tmp_path: Path) -> None:
    folder = models.wav2vec2(tmp_path / "model")
    with pytest.raises(InputError, match="needs 16000 Hz, the data has 8000 Hz"):
        speech(cache, f"workload.model.pretrained={folder}", "workload.data.rate=8000")
    with pytest.raises(InputError, match="nowhere"):
        speech(cache, f"workload.model.pretrained={tmp_path}/nowhere")


def test_a_dataset_that_is_a_script_is_one_clear_error(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "voices.py").write_text("import datasets\n")
    with pytest.raises(InputError, match="scripts are no longer supported"):
        speech(cache, f"workload.data.source='hf:{tmp_path}/voices'")
