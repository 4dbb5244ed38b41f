"""Copies of tensors to the device of a run, for which neither the loop nor the device waits."""

from __future__ import annotations

import torch


def to_device(value: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """`value` on `device`. A copy from pageable memory to a GPU would wait, so it goes through pinned memory.

    Source: CUDA Runtime API, "API synchronization behavior": transfers from pageable host memory are staged,
    and may be synchronous.
    """
    if torch.device(device).type == "cuda" and value.device.type == "cpu":
        value = value.pin_memory()
    return value.to(device, non_blocking=True)
