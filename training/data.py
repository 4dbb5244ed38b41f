"""Which sample is trained on when: a function of seed and position alone, the same for any number of ranks.

Used by the step loop. Easy to get wrong: positions count samples from the run's start and go on through epochs, so a
resume needs one number, and a global batch may begin in one epoch and end in the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass
class SampleOrder:
    """An endless order of `size` samples: each epoch a permutation of its own.

    `index(position)` may be asked in any order; one epoch's permutation is kept.
    """

    seed: int
    size: int
    _epoch: int = field(default=-1, repr=False)
    _permutation: torch.Tensor | None = field(default=None, repr=False)

    def index(self, position: int) -> int:
        """The sample at a position, counted from the run's start."""
        epoch, place = divmod(position, self.size)
        if self._permutation is None or epoch != self._epoch:
            self._permutation, self._epoch = permutation(self.seed, epoch, self.size), epoch
        return int(self._permutation[place])

    def indices(self, start: int, count: int) -> list[int]:
        """The samples at `count` positions from `start` on."""
        return [self.index(position) for position in range(start, start + count)]


def permutation(seed: int, epoch: int, size: int) -> torch.Tensor:
    """The order of an epoch: all samples once, decided by seed and epoch alone."""
    digest = hashlib.sha256(f"{seed}:{epoch}".encode()).digest()
    return torch.randperm(size, generator=torch.Generator().manual_seed(int.from_bytes(digest[:7])))


def micro_batch_starts(step: int, global_batch: int, micro_batch: int, rank: int, world_size: int) -> list[int]:
    """Positions at which a rank's micro batches of a step begin. Over all ranks they tile [step·G, step·G + G)."""
    accumulation = global_batch // (micro_batch * world_size)
    return [step * global_batch + (turn * world_size + rank) * micro_batch for turn in range(accumulation)]


def spread(size: int, limit: int | None) -> list[int]:
    """At most `limit` of `size` samples, evenly spread: what a validation looks at, the same each time."""
    count = size if limit is None else min(size, limit)
    return [place * size // count for place in range(count)]


def share(indices: Sequence[int], micro_batch: int, rank: int, world_size: int) -> list[list[int]]:
    """A rank's batches of a validation: whole batches dealt out in turn, so ranks may have unlike numbers of them."""
    batches = [list(indices[start : start + micro_batch]) for start in range(0, len(indices), micro_batch)]
    return batches[rank::world_size]
