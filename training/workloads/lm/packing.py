"""Packs conversations into samples of the context's length, and makes batches of them.

A conversation of n tokens takes n - 1 places of a sample, because its last token is a target only. Documents
of a sample do not attend to one another: their positions start at 0, by which the models of transformers
tell them apart (`pretrained.check_packing` compares). Nothing here imports torch.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainfleet.training.data import Column
from trainfleet.training.workloads.base import IGNORED

WIDTHS = 64
"""Batches of padded conversations are a multiple of it wide, so that a compiled model sees few shapes."""


def columns(token_type: str) -> dict[str, Column]:
    """The columns of a sample: its tokens, for each 1 if it is a target, the tokens of each document, and the
    number of targets.
    """
    return {
        "tokens": Column(token_type, (None,)),
        "answers": Column("uint8", (None,)),
        "documents": Column("int32", (None,)),
        "num_targets": Column("int64"),
    }


def sample_of(tokens: NDArray[Any], answers: NDArray[np.uint8]) -> dict[str, Any]:
    """The sample of one conversation."""
    documents = np.array([len(tokens)], dtype=np.int32)
    return {
        "tokens": tokens,
        "answers": answers,
        "documents": documents,
        "num_targets": int(answers.sum()),
    }


@dataclass(frozen=True)
class Pack:
    """The `Combine` of packing: best fit, the longest first, in samples of `context` places.

    Conversations keep their order within a sample, and samples that of their first conversation.
    """

    context: int

    @property
    def key(self) -> str:
        return f"pack 1 {self.context}"

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        sizes = [int((each["documents"] - 1).sum()) for each in samples]
        packed = [sorted(each) for each in best_fit(sizes, self.context)]
        return [_joined([samples[place] for place in places]) for places in sorted(packed)]


def best_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """The places of `sizes` in each bin of `capacity`: the largest first, in the fullest bin with space."""
    bins: list[list[int]] = []
    free: list[tuple[int, int]] = []
    for place in sorted(range(len(sizes)), key=lambda each: (-sizes[each], each)):
        found = bisect.bisect_left(free, (sizes[place], -1))
        if found < len(free):
            left, number = free.pop(found)
        else:
            left, number = capacity, len(bins)
            bins.append([])
        bins[number].append(place)
        bisect.insort(free, (left - sizes[place], number))
    return bins


def batch_of(
    rows: Mapping[str, Sequence[Any]], context: int, fill: int, packing: bool
) -> dict[str, NDArray[np.int64]]:
    """A batch [B, T] of samples: `inputs`, filled up with the token `fill`, `targets`, which are IGNORED
    outside of answers, and with packing `positions`, which start at 0 in each document and in the filling.
    T is the context with packing, else enough for the longest sample.
    """
    used = [int((np.asarray(each) - 1).sum()) for each in rows["documents"]]
    width = context if packing else min(context, -(-max(used) // WIDTHS) * WIDTHS)
    shape = (len(used), width)
    inputs, targets = np.full(shape, fill, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)
    positions = np.zeros(shape, dtype=np.int64)
    for number, (tokens, answers, documents) in enumerate(
        zip(rows["tokens"], rows["answers"], rows["documents"], strict=True)
    ):
        start = place = 0
        for length in np.asarray(documents).tolist():
            end = place + length - 1
            following = slice(start + 1, start + length)
            inputs[number, place:end] = tokens[start : start + length - 1]
            # The stored type is unsigned, and IGNORED is below 0.
            values = tokens[following].astype(np.int64)
            targets[number, place:end] = np.where(answers[following], values, IGNORED)
            positions[number, place:end] = np.arange(length - 1)
            start, place = start + length, end
        positions[number, place:] = np.arange(width - place)
    found = {"inputs": inputs, "targets": targets}
    return found | {"positions": positions} if packing else found


def _joined(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One sample with the documents of several."""
    joined = {
        name: np.concatenate([each[name] for each in samples]) for name in ("tokens", "answers", "documents")
    }
    return joined | {"num_targets": sum(each["num_targets"] for each in samples)}
