"""A bigram model of bytes, the baseline of the `lm` workload.

It is evaluated on the same bytes as the model, each after its predecessor; counts come from the training
split.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMOOTHING = 1.0
"""Pseudo-counts per preceding byte, distributed by the bytes' frequencies (add one)."""


def pair_counts(chunks: Iterable[bytes | NDArray[Any]]) -> NDArray[np.int64]:
    """How often each byte [row] is followed by each [column], within chunks."""
    counts = np.zeros(256 * 256, dtype=np.int64)
    for chunk in chunks:
        values = np.frombuffer(chunk, dtype=np.uint8) if isinstance(chunk, bytes) else chunk
        pairs = values[:-1].astype(np.int32) * 256 + values[1:]
        counts += np.bincount(pairs, minlength=256 * 256)
    return counts.reshape(256, 256)


def nats_per_byte(train: NDArray[np.int64], evaluated: NDArray[np.int64]) -> float:
    """Cross entropy of the pairs `evaluated` under the smoothed bigram model counted in `train` (both [256,
    256]).
    """
    single = train.sum(axis=0) + 1.0
    smooth = SMOOTHING * single / single.sum()
    probability = (train + smooth) / (train.sum(axis=1, keepdims=True) + SMOOTHING)
    return float(-(evaluated * np.log(probability)).sum() / evaluated.sum())
