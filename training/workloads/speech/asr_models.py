"""What a speech model hears, learns and writes: one class per way of recognising. Used by the `speech`
workload.

`Letters` is the small model made here; the pretrained ones are in
`trainfleet.training.workloads.speech.pretrained`. Easy to get wrong: the
loss of an utterance is per letter (or token) of its own transcript, so a batch weighs as many as it has
utterances, which every
rank knows of all ranks without reading their sounds.
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
"""Stands behind the end of a transcript."""


class Recogniser(ABC):
    """A way of recognising: batches, losses and transcripts of one kind of model."""

    @abstractmethod
    def build(self) -> nn.Module:
        """The model."""

    @abstractmethod
    def inputs(self, sounds: Sequence[NDArray[np.int16]]) -> dict[str, Tensor]:
        """What the model hears, on the CPU."""

    @abstractmethod
    def targets(self, text: str) -> list[int]:
        """What is to be written, as the model writes it."""

    @abstractmethod
    def losses(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        """Mean loss per letter of each utterance [B]."""

    @abstractmethod
    def transcripts(self, model: Any, batch: dict[str, Tensor]) -> list[str]:
        """What the model writes."""

    @abstractmethod
    def export(self, model: nn.Module, folder: Path) -> None:
        """Write the model with all that is needed to use it."""

    @abstractmethod
    def spelt(self, targets: Sequence[int]) -> str:
        """The text, as it is compared, of what `targets` made of it."""

    @abstractmethod
    def plain(self, text: str) -> str:
        """A transcript as it is compared: what cannot be written is left out."""


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
        return {"sound": padded(sounds), "length": torch.tensor([len(each) for each in sounds])}

    def targets(self, text: str) -> list[int]:
        return [self._numbers[letter] for letter in self.plain(text)]

    def losses(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        logits, steps = self._heard(model, batch)
        return ctc_losses(logits, steps, batch["target"], blank=0)

    def transcripts(self, model: Any, batch: dict[str, Tensor]) -> list[str]:
        logits, steps = self._heard(model, batch)
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

    def _heard(self, model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        with torch.autocast(batch["sound"].device.type, enabled=False):
            frames, counts = log_mel(batch["sound"] / 32768, batch["length"], self.rate, self.settings.mels)
        return model(frames, counts), steps_of(counts)


def load_exported(folder: Path) -> tuple[nn.Module, Letters]:
    """The small model from an exported folder, and what turns sounds into its inputs and its outputs into
    text.
    """
    config = read_config(folder, KIND)
    letters = Letters(SpeechModelSettings.model_validate(config["model"]), config["rate"])
    return read_weights(folder, letters.build()), letters


def padded(sounds: Sequence[NDArray[np.int16]]) -> Tensor:
    """Sounds of unlike length as one tensor [B, S], int16, zeros behind each end."""
    out = torch.zeros(len(sounds), max(len(each) for each in sounds), dtype=torch.int16)
    for row, sound in zip(out, sounds, strict=True):
        row[: len(sound)] = torch.from_numpy(np.ascontiguousarray(sound))
    return out


def filled(targets: Sequence[Sequence[int]]) -> Tensor:
    """Transcripts as one tensor [B, L], `IGNORED` behind each end."""
    out = torch.full((len(targets), max(1, *(len(each) for each in targets))), IGNORED)
    for row, target in zip(out, targets, strict=True):
        row[: len(target)] = torch.tensor(target, dtype=torch.int64)
    return out


def ctc_losses(logits: Tensor, steps: Tensor, targets: Tensor, blank: int) -> Tensor:
    """CTC loss per letter of each utterance [B] (Graves et al. 2006); zero where a sound has too few steps
    for its transcript.
    """
    lengths = (targets != IGNORED).sum(dim=1)
    scores = logits.float().log_softmax(dim=-1).transpose(0, 1)
    found = F.ctc_loss(
        scores, targets.clamp(min=0), steps, lengths, blank=blank, reduction="none", zero_infinity=True
    )
    return found / lengths.clamp(min=1)


def collapsed(logits: Tensor, steps: Tensor, blank: int) -> list[list[int]]:
    """The best letter of each step, repetitions and blanks taken out."""
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
