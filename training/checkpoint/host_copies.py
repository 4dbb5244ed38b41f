"""Copies of a GPU's tensors to pinned memory, while the GPU computes the next forward and backward pass.

The copies run on a stream of their own. Only the next change of the weights waits for them, on the GPU; the
step loop does not. Source: PyTorch, "CUDA semantics", on streams, and `torch.Tensor.record_stream`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


class Copy(NamedTuple):
    """A tensor on a GPU and the pinned buffer that it is copied to."""

    buffer: torch.Tensor
    data: torch.Tensor
    changes_in_forward: bool
    """Whether a forward pass changes it in place, as BatchNorm's running means."""


class HostCopies:
    """The copies of one snapshot at a time."""

    def __init__(self) -> None:
        self._stream: Any = None
        self._copied: Any = None

    def start(self, copies: Sequence[Copy]) -> None:
        """Begin to copy what the current stream has computed so far. Does not wait for the GPU."""
        if not copies:
            self._copied = None
            return
        device = copies[0].data.device
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch is partly typed
        for each in copies:
            if each.changes_in_forward:  # the next forward pass is queued behind it
                each.buffer.copy_(each.data, non_blocking=True)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            for each in copies:
                if not each.changes_in_forward:
                    each.buffer.copy_(each.data, non_blocking=True)
                    # It may be a temporary, whose memory must not be reused before it is copied.
                    each.data.record_stream(self._stream)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch is partly typed
            copied.record()
        self._copied = copied

    def before_change(self) -> None:
        """Let what is queued from now on wait for the copies: call it before the weights are changed."""
        if self._copied is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._copied)

    def wait(self) -> None:
        """Wait in this thread until the buffers have their values."""
        if self._copied is not None:
            self._copied.synchronize()
