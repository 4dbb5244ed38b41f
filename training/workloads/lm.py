"""The language-model workload: a GPT on packed text, and a bigram model beside it.

Used by the step loop through the `Workload` protocol. Easy to get wrong: sample `i` is tokens i·T to i·T + T of its
split, inputs and targets overlapping by one, so a split of n tokens holds (n - 1) // T samples, and its last few are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from training.workloads import Outcome, Split
from training.workloads.bigram import nats_per_byte, pair_counts
from training.workloads.gpt import Gpt, flops_per_token
from training.workloads.lm_settings import LmSettings
from training.workloads.text import token_files

_BASELINE_BLOCKS = 64
"""So many blocks (of 8 MiB, by default) are counted for the bigram model."""


class LanguageModel:
    """See `training.workloads.Workload`. Batches hold `inputs` and `targets`, int64 [B, T]."""

    metrics = ("nats_per_byte", "accuracy")

    def __init__(self, settings: LmSettings, cache: Path) -> None:
        self.settings = settings
        self.files = token_files(settings.data, cache, settings.model.context)
        self.streamed = self.files.streamed
        self.sample_tokens = settings.model.context
        self.describe = "nats/byte" if settings.data.tokens == "bytes" else "nats/token"
        self.byte_lengths = torch.tensor([len(each) for each in self.files.spelling])
        with torch.device("meta"):
            self.parameters = sum(each.numel() for each in self.build_model().parameters())
        self.flops_per_token = flops_per_token(self.parameters, settings.model)

    def fingerprint(self) -> str:
        return self.files.digest

    def build_model(self) -> torch.nn.Module:
        return Gpt(self.settings.model, self.files.vocabulary)

    def size(self, split: Split) -> int:
        return self.files.blocks[split].size

    def blocks(self, split: Split) -> list[int]:
        """Samples per block file, for a windowed shuffle."""
        return self.files.blocks[split].sizes()

    def expect(self, split: Split, indices: Sequence[int]) -> None:
        """Open the blocks of these samples in the background."""
        self.files.blocks[split].expect(indices)

    def facts(self) -> dict[str, Any]:
        """What run.json says about the data."""
        return {"data": self.files.prepared.facts()}

    def batch(self, split: Split, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        values = torch.from_numpy(self.files.blocks[split].rows(indices, np.int64)["tokens"])
        return {"inputs": values[:, :-1].contiguous(), "targets": values[:, 1:].contiguous()}

    def weight(self, split: Split, indices: Sequence[int]) -> float:  # noqa: ARG002 - every sample of every split has as many targets
        return float(len(indices) * self.sample_tokens)

    def outcome(self, model: Callable[..., torch.Tensor], batch: dict[str, torch.Tensor]) -> Outcome:
        targets = batch["targets"].flatten()
        logits = model(batch["inputs"]).flatten(0, 1)
        loss = F.cross_entropy(logits.float(), targets, reduction="sum")
        with torch.no_grad():
            right = (logits.argmax(dim=-1) == targets).sum()
            written = self.byte_lengths.to(targets.device)[targets].sum()
        count = targets.numel()
        return Outcome(loss, count, {"nats_per_byte": (loss.detach(), written), "accuracy": (right, count)})

    def baseline(self, indices: Sequence[int]) -> dict[str, float]:
        """Bigram cross entropy on the bytes that the validation samples `indices` ask for, each after the byte before it."""
        train = pair_counts(self._train_bytes())
        spelling, judged = self.files.spelling, []
        for sample in self.files.blocks["validation"].rows(indices)["tokens"]:
            row = [spelling[token] for token in sample]
            judged.append(b"".join([row[0][-1:], *row[1:]]))
        return {"bigram_nats_per_byte": nats_per_byte(train, pair_counts(judged))}

    def _train_bytes(self) -> Iterator[bytes]:
        """The training split as bytes, in pieces that overlap by one byte so that no pair is lost or counted twice; of a large one a part."""
        spelling = self.files.spelling
        for tokens in self.files.tokens("train", at_most=_BASELINE_BLOCKS):
            if len(spelling) == 256:
                yield tokens.tobytes()
            else:
                first, *others = tokens.tolist()
                yield b"".join([spelling[first][-1:], *map(spelling.__getitem__, others)])
