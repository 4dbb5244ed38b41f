"""Tells transformers whether samples have several documents.

Its attention masks depend on that. It reads the positions of each forward pass to find out, for which the
host waits for the device. Which samples are packed is known before a batch is on the device.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_PACKED: ContextVar[bool | None] = ContextVar("packed", default=None)
"""Of the pass of this thread; None: transformers finds out itself."""


@contextmanager
def documents(*, packed: bool) -> Iterator[None]:
    """In the context, samples have one document each, or, if packed, one at each position 0."""
    _tell_transformers()
    token = _PACKED.set(packed)
    try:
        yield
    finally:
        _PACKED.reset(token)


@functools.cache
def _tell_transformers() -> None:
    from transformers import masking_utils

    find = masking_utils.find_packed_sequence_indices

    def known_documents(position_ids: Tensor) -> Tensor | None:
        """The number of each token's document in its sample; None if samples have one document each."""
        packed = _PACKED.get()
        if packed is None or torch.compiler.is_compiling():
            found: Tensor | None = find(position_ids)
            return found
        if not packed:
            return None
        return (torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1) != 1).cumsum(-1)

    masking_utils.find_packed_sequence_indices = known_documents
