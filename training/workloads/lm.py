"""The language-model workload: a GPT on packed text, and a bigram model beside it.

Used by the step loop through the `Workload` protocol. Easy to get wrong: sample `i` is tokens i·T to i·T + T of its
split, inputs and targets overlapping by one, so a split of n tokens holds (n - 1) // T samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from trainfleet.errors import InputError, Problem
from training.workloads import Outcome, Split
from training.workloads.bigram import nats_per_byte, pair_counts
from training.workloads.gpt import Gpt, flops_per_token
from training.workloads.lm_settings import LmSettings
from training.workloads.text import token_files

_CHUNK = 1 << 22


class LanguageModel:
    """See `training.workloads.Workload`. Batches hold `inputs` and `targets`, int64 [B, T]."""

    metrics = ("nats_per_byte", "accuracy")

    def __init__(self, settings: LmSettings, cache: Path) -> None:
        self.settings = settings
        self.files = token_files(settings.data, cache)
        self.sample_tokens = settings.model.context
        self.describe = "nats/byte" if settings.data.tokens == "bytes" else "nats/token"
        self.byte_lengths = torch.tensor([len(each) for each in self.files.spelling])
        with torch.device("meta"):
            self.parameters = sum(each.numel() for each in self.build_model().parameters())
        self.flops_per_token = flops_per_token(self.parameters, settings.model)
        for split, tokens in self.files.splits.items():
            if self.size(split) < 1:
                what = f"the {split} split has {len(tokens)} tokens, less than one sample of {self.sample_tokens}"
                raise InputError("too little text", [Problem("workload.model.context", what, "a shorter context or more text")])

    def fingerprint(self) -> str:
        return self.files.digest

    def build_model(self) -> torch.nn.Module:
        return Gpt(self.settings.model, self.files.vocabulary)

    def size(self, split: Split) -> int:
        return (len(self.files.splits[split]) - 1) // self.sample_tokens

    def batch(self, split: Split, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        tokens, length = self.files.splits[split], self.sample_tokens
        rows = np.stack([tokens[index * length : index * length + length + 1] for index in indices])
        values = torch.from_numpy(rows.astype(np.int64))
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
        length, tokens, spelling = self.sample_tokens, self.files.splits["validation"], self.files.spelling
        judged = []
        for index in indices:
            row = [spelling[token] for token in tokens[index * length : index * length + length + 1]]
            judged.append(b"".join([row[0][-1:], *row[1:]]))
        return {"bigram_nats_per_byte": nats_per_byte(train, pair_counts(judged))}

    def _train_bytes(self) -> list[bytes]:
        """The training split as bytes, in chunks that overlap by one byte so that no pair is lost or counted twice."""
        tokens, spelling = self.files.splits["train"], self.files.spelling
        whole = tokens.tobytes() if len(spelling) == 256 else b"".join(map(spelling.__getitem__, tokens.tolist()))
        return [whole[start : start + _CHUNK + 1] for start in range(0, max(1, len(whole) - 1), _CHUNK)]
