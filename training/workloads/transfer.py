"""Copies of tensors to the device of a run, for which neither the loop nor the device waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


def to_device(value: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """`value` on `device`. A copy from pageable memory to a GPU would wait, so it goes through pinned memory.

    Source: CUDA Runtime API, "API synchronization behavior": transfers from pageable host memory are staged,
    and may be synchronous.
    """
    if torch.device(device).type == "cuda" and value.device.type == "cpu":
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


@dataclass(frozen=True)
class Copying:
    """A batch on its way to the device.

    Attributes:
        batch: tensors on the device, to be used after `CopyStream.finish` only.
        copied: CUDA event after the copies; None if nothing was copied.
    """

    batch: dict[str, torch.Tensor]
    copied: Any = None


class CopyStream:
    """Copies batches to a GPU on a CUDA stream of its own, so that the GPU computes in the meantime. On a CPU
    nothing is copied.

    Source: PyTorch, "CUDA semantics", on streams, and `torch.Tensor.record_stream`.
    """

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)
        self._stream: Any = None
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch is partly typed

    def start(self, batch: Mapping[str, torch.Tensor]) -> Copying:
        """Begin to copy a batch of CPU tensors. Any thread may call it; it does not wait for the device."""
        if self._stream is None:
            return Copying(dict(batch))
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            there = {name: to_device(value, self.device) for name, value in batch.items()}
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch is partly typed
            copied.record()
        return Copying(there, copied)

    def finish(self, copying: Copying) -> dict[str, torch.Tensor]:
        """The batch, for the calling thread's current stream: that stream waits for the copies, not the
        thread.
        """
        if copying.copied is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(copying.copied)
            for value in copying.batch.values():
                # The memory belongs to the other stream: it must not be reused before this one has read it.
                value.record_stream(stream)
        return copying.batch
