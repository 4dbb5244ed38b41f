"""A bigram model of bytes: what a language model must beat to have learnt more than which byte follows which.

Used by the `lm` workload for the report. Easy to get wrong: it must be judged on the same bytes as the model,
with the
byte before each, and its counts must come from the training split alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMOOTHING = 1.0
"""Pseudo-counts per preceding byte, shared out like the bytes' own frequencies (add one)."""


def pair_counts(chunks: Iterable[bytes | NDArray[Any]]) -> NDArray[np.int64]:
    """How often each byte [row] is followed by each [column], within chunks."""
    counts = np.zeros(256 * 256, dtype=np.int64)
    for chunk in chunks:
        values = np.frombuffer(chunk, dtype=np.uint8) if isinstance(chunk, bytes) else chunk
        pairs = values[:-1].astype(np.int32) * 256 + values[1:]
        counts += np.bincount(pairs, minlength=256 * 256)
    return counts.reshape(256, 256)


def nats_per_byte(train: NDArray[np.int64], judged: NDArray[np.int64]) -> float:
    """Cross entropy of the pairs `judged` under the smoothed bigram model counted in `train` (both [256,
    256]).
    """
    single = train.sum(axis=0) + 1.0
    smooth = SMOOTHING * single / single.sum()
    probability = (train + smooth) / (train.sum(axis=1, keepdims=True) + SMOOTHING)
    return float(-(judged * np.log(probability)).sum() / judged.sum())
