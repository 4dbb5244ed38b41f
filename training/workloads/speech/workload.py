"""The speech-to-text workload: CTC or encoder-decoder models, word and character error rates by torchmetrics.

Error rates compare generated text, in lower case without punctuation, so they are measured in evaluation
only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

import trainfleet.training.trainer.torchmetrics_compat  # noqa: F401 - must precede torchmetrics
from trainfleet.errors import InputError, Problem
from trainfleet.training.data import spread
from trainfleet.training.data.readers import UnreadableError
from trainfleet.training.workloads import Split, StepOutput, Workload
from trainfleet.training.workloads.lora import keep_frozen_in
from trainfleet.training.workloads.model_folder import dtype_of
from trainfleet.training.workloads.speech.asr_models import Letters, Recogniser, load_exported, pad_targets
from trainfleet.training.workloads.speech.audio import as_int16, audio_blocks, resampled, to_mono
from trainfleet.training.workloads.speech.settings import SpeechSettings

_CANDIDATES, _COMPARED = 100, 100
"""Number of transcripts that the baseline chooses from, and that it compares them with."""
_STREAM_FROM = 4 << 30


class Speech(Workload):
    """Batches hold the recogniser's inputs and `target`, int64 [B, L]."""

    metrics: tuple[str, ...] = ()
    precisions = ("fp32", "bf16")
    predict_settings = ()
    sample_tokens = 0
    flops_per_token = 0.0
    thread_safe_batch = True

    def __init__(self, settings: SpeechSettings, cache: Path) -> None:
        self._configure(settings)
        self.loss_unit = "nats/letter" if settings.model.kind == "ctc" else "nats/token"
        self.prepared = audio_blocks(settings.data, cache)
        self._blocks = self.prepared.splits(cache, disk=int(settings.data.disk_gib * 2**30))
        self.streamed = self.prepared.manifest.bytes() > _STREAM_FROM

    @classmethod
    def for_inference(
        cls,
        settings: SpeechSettings,
        assets: Mapping[str, bytes],  # noqa: ARG003 - the settings have the letters
        folder: Path | None,
    ) -> Self:
        """Nothing but the settings; a pretrained model's parts are read from its published folder."""
        workload = cls.__new__(cls)
        if settings.model.pretrained is not None and folder is not None:
            settings = _read_from(settings, folder)
        workload._configure(settings)
        return workload

    def fingerprint(self) -> str:
        return self.prepared.manifest.digest()

    def build_model(self) -> torch.nn.Module:
        model = self.recogniser.build()
        return keep_frozen_in(model, dtype_of(self.frozen_precision))

    def frozen_source(self) -> str | None:
        return self.recogniser.frozen_source()

    def size(self, split: Split) -> int:
        return self._blocks[split].size

    def blocks(self, split: Split) -> list[int]:
        """Samples per block file, for a windowed shuffle."""
        return self._blocks[split].sizes()

    def prefetch(self, split: Split, indices: Sequence[int]) -> None:
        """Open the blocks of these samples in the background."""
        self._blocks[split].prefetch(indices)

    def data_info(self) -> dict[str, Any]:
        """The data's entries in run.json."""
        return {"data": self.prepared.data_info()}

    def batch(self, split: Split, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        rows = self._blocks[split].rows(indices)
        target = pad_targets([self.recogniser.targets(text) for text in rows["text"]])
        return {**self.recogniser.inputs(rows["audio"]), "target": target}

    def num_targets(self, split: Split, indices: Sequence[int]) -> float:  # noqa: ARG002 - every utterance counts alike
        return float(len(indices))

    def forward_loss(self, model: Callable[..., torch.Tensor], batch: dict[str, torch.Tensor]) -> StepOutput:
        loss = self.recogniser.loss(model, batch)
        seen: dict[str, tuple[Any, ...]] = {}
        if not getattr(model, "training", True):
            written = [self.recogniser.plain(each) for each in self.recogniser.transcripts(model, batch)]
            seen = dict.fromkeys(("wer", "cer"), (written, self._reference_texts(batch["target"])))
        return StepOutput(loss, len(batch["target"]), metric_inputs=seen)

    def take_notes(self) -> list[str]:
        return self.recogniser.take_notes()

    def collections(self, split: Split) -> dict[str, Any]:
        """Word and character error rates; not in training, which generates no text."""
        if split == "train":
            return {}
        from torchmetrics.text import CharErrorRate, WordErrorRate

        return {"wer": WordErrorRate(), "cer": CharErrorRate()}

    def baseline(self, indices: Sequence[int]) -> dict[str, float]:
        """Error rates of one constant sentence: the training sentence that matches others best."""
        rates, train = self.collections("validation"), self._blocks["train"]
        texts = [
            self.recogniser.plain(text)
            for text in self._texts("train", spread(train.size, _CANDIDATES + _COMPARED))
        ]
        candidates, compared = texts[::2], texts[1::2] or texts
        references = [self.recogniser.plain(text) for text in self._texts("validation", indices)]
        best = min(candidates, key=lambda text: float(rates["wer"]([text] * len(compared), compared)))
        return {
            f"one_sentence_{name}": float(rate([best] * len(references), references))
            for name, rate in rates.items()
        }

    def read(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Rows with `audio`: a path or an encoded file, or samples with `rate` in Hz."""
        sounds, problems, target_rate = [], [], self.settings.data.rate
        for number, row in enumerate(rows):
            try:
                sound, rate = to_mono(row.get("audio"), row.get("rate"))
                sounds.append(as_int16(resampled(sound, rate, target_rate)))
            except UnreadableError as error:
                problems.append(
                    Problem(
                        f"row {number}",
                        f"audio {error}",
                        "a path, an encoded file, or samples with their `rate`",
                    )
                )
        if problems:
            raise InputError("some rows have no audio", problems)
        return self.recogniser.inputs(sounds)

    def read_samples(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, torch.Tensor]]:
        """Rows with `audio` and `text`, its transcript."""
        problems = [
            Problem(f"row {number}", "has no transcript", '{"audio": ..., "text": "the transcript"}')
            for number, row in enumerate(rows)
            if not isinstance(row.get("text"), str)
        ]
        if problems:
            raise InputError("some rows have no transcript", problems)
        targets = [self.recogniser.targets(" ".join(row["text"].split())) for row in rows]
        return [{**self.read(rows), "target": pad_targets(targets)}]

    @torch.no_grad()
    def predict(
        self,
        model: torch.nn.Module,
        batch: dict[str, torch.Tensor],
        **settings: Any,  # noqa: ARG002 - no settings
    ) -> list[dict[str, Any]]:
        """The transcript of each row."""
        return [{"text": text} for text in self.recogniser.transcripts(model, batch)]

    def export(self, model: torch.nn.Module, folder: Path) -> None:
        self.recogniser.export(model, folder)

    def import_(self, folder: Path) -> torch.nn.Module:
        """Build a model from what `export` wrote."""
        if self.settings.model.pretrained is None:
            return load_exported(folder, dtype_of(self.precision))[0]
        return make_recogniser(_read_from(self.settings, folder)).build().eval()

    def _configure(self, settings: SpeechSettings) -> None:
        self.settings, self.recogniser = settings, make_recogniser(settings)
        self.on_meta = settings.model.pretrained is None

    def _texts(self, split: Split, indices: Sequence[int]) -> list[str]:
        """Transcripts without audio."""
        rows = self._blocks[split].rows_per_block
        held: dict[int, list[str]] = {}
        for number in sorted({index // rows for index in indices}):
            held[number] = self._blocks[split].block(number)["text"]
        return [held[index // rows][index % rows] for index in indices]

    def _reference_texts(self, targets: torch.Tensor) -> list[str]:
        return [self.recogniser.spelt([number for number in row if number >= 0]) for row in targets.tolist()]


def _read_from(settings: SpeechSettings, folder: Path) -> SpeechSettings:
    """The settings of a pretrained model that is in `folder`."""
    model = settings.model.model_copy(update={"pretrained": str(folder), "lora": None})
    return settings.model_copy(update={"model": model})


def make_recogniser(settings: SpeechSettings) -> Recogniser:
    """The recogniser for the settings."""
    if settings.model.pretrained is None:
        return Letters(settings.model, settings.data.rate)
    from trainfleet.training.workloads.speech.pretrained import pretrained

    return pretrained(settings)
