"""Host memory for a snapshot of a state.

torch rounds each allocation of pinned memory up to a power of two (CachingHostAllocator), which would take
up to twice the bytes of the tensors. Tensors of a GPU therefore share allocations that are powers of two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch

Key = TypeVar("Key")
SHARED_BYTES = 1 << 30
"""Size of a shared allocation, unless a tensor is larger or less is left."""
ALIGNMENT = 512
"""In bytes, of a tensor in an allocation: as on the GPU, and a multiple of every element's size."""


class Place(NamedTuple):
    """Where a tensor is: the number of its allocation, and its first byte there."""

    allocation: int
    begin: int


def host_buffers(tensors: Mapping[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
    """A contiguous buffer for each tensor, of its shape and type. That of a tensor on a GPU is pinned."""
    on_gpu = {key: data for key, data in tensors.items() if data.is_cuda}
    own = {
        key: torch.empty(data.shape, dtype=data.dtype) for key, data in tensors.items() if key not in on_gpu
    }
    return own | shared_buffers(on_gpu)


def shared_buffers(tensors: Mapping[Key, torch.Tensor], *, pinned: bool = True) -> dict[Key, torch.Tensor]:
    """A buffer for each tensor in allocations that they share. Only a machine with a GPU can pin them."""
    allocations, places = packed([data.nbytes for data in tensors.values()])
    memory = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned) for size in allocations]
    return {
        key: part_of(memory[place.allocation], place.begin, data)
        for (key, data), place in zip(tensors.items(), places, strict=True)
    }


def part_of(memory: torch.Tensor, begin: int, like: torch.Tensor) -> torch.Tensor:
    """A view of bytes, with the shape and type of `like`."""
    return memory[begin : begin + like.nbytes].view(like.dtype).view(like.shape)


def packed(sizes: Sequence[int]) -> tuple[list[int], list[Place]]:
    """Allocations for tensors of these sizes in bytes, and where each tensor is. The largest come first, each
    into the first allocation with enough space.
    """
    allocations: list[int] = []
    free: dict[int, int] = {}
    places: dict[int, Place] = {}
    rounded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    left = sum(rounded)
    for number in sorted(range(len(sizes)), key=lambda each: -rounded[each]):
        size = rounded[number]
        fitting = next((index for index, space in free.items() if space >= size), None)
        if fitting is None:
            fitting = len(allocations)
            allocations.append(max(_at_least(size), min(_at_most(left), SHARED_BYTES)))
            free[fitting] = allocations[fitting]
        places[number] = Place(fitting, allocations[fitting] - free[fitting])
        free[fitting] -= size
        if free[fitting] < ALIGNMENT:
            del free[fitting]
        left -= size
    return allocations, [places[number] for number in range(len(sizes))]


def _at_least(size: int) -> int:
    """The smallest power of two that is not below a size."""
    return 1 << max(0, size - 1).bit_length()


def _at_most(size: int) -> int:
    """The largest power of two that is not above a size, and at least 1."""
    return 1 << max(0, size.bit_length() - 1)


def alone(data: torch.Tensor) -> torch.Tensor:
    """The tensor with a storage of its own bytes only, which `torch.save` writes whole. Copies nothing."""
    if data.untyped_storage().nbytes() == data.nbytes:
        return data
    if not data.nbytes:
        return data.clone()
    own = torch.from_numpy(data.reshape(-1).view(torch.uint8).numpy())
    return own.view(data.dtype).view(data.shape)
