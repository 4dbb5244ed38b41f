"""Recognisers: inputs, targets, losses and transcripts of each kind of speech model.

The loss of an utterance is per letter or token of its transcript, so a batch's targets are its utterances,
which every rank knows of all ranks without reading audio.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from numpy.typing import NDArray
from torch import Tensor, nn

from trainfleet.training.workloads.model_folder import read_config, read_weights, write_model
from trainfleet.training.workloads.speech.conformer import SmallCtc, log_mel, steps_of
from trainfleet.training.workloads.speech.settings import SpeechModelSettings

KIND = "trainfleet-speech"
IGNORED = -100
"""Pads transcripts."""


class Recogniser(ABC):
    """Batches, losses and transcripts of one kind of model."""

    @abstractmethod
    def build(self) -> nn.Module:
        """The model."""

    def frozen_source(self) -> str | None:
        """As `Workload.frozen_source`."""
        return None

    @abstractmethod
    def inputs(self, sounds: Sequence[NDArray[np.int16]]) -> dict[str, Tensor]:
        """The model's inputs, on the CPU."""

    @abstractmethod
    def targets(self, text: str) -> list[int]:
        """A transcript in the model's tokens."""

    @abstractmethod
    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        """Sum over utterances of each one's mean loss per letter or token."""

    def take_notes(self) -> list[str]:
        """As `Workload.take_notes`."""
        return []

    @abstractmethod
    def transcripts(self, model: Any, batch: dict[str, Tensor]) -> list[str]:
        """The recognised texts."""

    @abstractmethod
    def export(self, model: nn.Module, folder: Path) -> None:
        """Write the model with everything needed to use it."""

    @abstractmethod
    def spelt(self, targets: Sequence[int]) -> str:
        """Inverse of `targets`, in the form used for comparison."""

    @abstractmethod
    def plain(self, text: str) -> str:
        """A transcript in the form used for comparison, without characters that the model lacks."""


class Letters(Recogniser):
    """The small model: log-mel frames to letters by CTC."""

    def __init__(self, settings: SpeechModelSettings, rate: int) -> None:
        assert settings.alphabet is not None
        self.settings, self.rate = settings, rate
        self.letters = ["", " ", *dict.fromkeys(settings.alphabet)]  # the blank comes first
        self._numbers = {letter: number for number, letter in enumerate(self.letters)}

    def build(self) -> nn.Module:
        return SmallCtc(self.settings, len(self.letters))

    def inputs(self, sounds: Sequence[NDArray[np.int16]]) -> dict[str, Tensor]:
        return {"sound": pad_audio(sounds), "length": torch.tensor([len(each) for each in sounds])}

    def targets(self, text: str) -> list[int]:
        return [self._numbers[letter] for letter in self.plain(text)]

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        logits, steps = self._logits(model, batch)
        return ctc_losses(logits, steps, batch["target"], blank=0).sum()

    def transcripts(self, model: Any, batch: dict[str, Tensor]) -> list[str]:
        logits, steps = self._logits(model, batch)
        return [
            "".join(self.letters[number] for number in each) for each in collapsed(logits, steps, blank=0)
        ]

    def export(self, model: nn.Module, folder: Path) -> None:
        write_model(folder, KIND, model, {"model": self.settings.model_dump(mode="json"), "rate": self.rate})

    def spelt(self, targets: Sequence[int]) -> str:
        return "".join(self.letters[number] for number in targets)

    def plain(self, text: str) -> str:
        return " ".join(
            "".join(letter if letter in self._numbers else " " for letter in text.lower()).split()
        )

    def _logits(self, model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        with torch.autocast(batch["sound"].device.type, enabled=False):
            frames, counts = log_mel(batch["sound"] / 32768, batch["length"], self.rate, self.settings.mels)
        return model(frames, counts), steps_of(counts)


def load_exported(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Letters]:
    """The small model and its recogniser from an exported folder."""
    config = read_config(folder, KIND)
    letters = Letters(SpeechModelSettings.model_validate(config["model"]), config["rate"])
    with torch.device("meta"):
        model = letters.build()
    return read_weights(folder, model, dtype), letters


def pad_audio(sounds: Sequence[NDArray[np.int16]]) -> Tensor:
    """Audio of different lengths as one tensor [B, S], int16, padded with zeros."""
    out = torch.zeros(len(sounds), max(len(each) for each in sounds), dtype=torch.int16)
    for row, sound in zip(out, sounds, strict=True):
        row[: len(sound)] = torch.from_numpy(np.ascontiguousarray(sound))
    return out


def pad_targets(targets: Sequence[Sequence[int]]) -> Tensor:
    """Transcripts as one tensor [B, L], padded with `IGNORED`."""
    out = torch.full((len(targets), max(1, *(len(each) for each in targets))), IGNORED)
    for row, target in zip(out, targets, strict=True):
        row[: len(target)] = torch.tensor(target, dtype=torch.int64)
    return out


def ctc_losses(logits: Tensor, steps: Tensor, targets: Tensor, blank: int) -> Tensor:
    """CTC loss per letter of each utterance [B] (Graves et al. 2006); zero if its audio is too short."""
    lengths = (targets != IGNORED).sum(dim=1)
    scores = logits.float().log_softmax(dim=-1).transpose(0, 1)
    found = F.ctc_loss(
        scores, targets.clamp(min=0), steps, lengths, blank=blank, reduction="none", zero_infinity=True
    )
    return found / lengths.clamp(min=1)


def collapsed(logits: Tensor, steps: Tensor, blank: int) -> list[list[int]]:
    """The best letter of each step, without repetitions and blanks."""
    best = logits.argmax(dim=-1).tolist()
    rows = (row[:count] for row, count in zip(best, steps.tolist(), strict=True))
    return [
        [
            letter
            for place, letter in enumerate(row)
            if letter != blank and (not place or row[place - 1] != letter)
        ]
        for row in rows
    ]
