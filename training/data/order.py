"""Sample order: a function of seed and position alone, the same for any number of ranks.

Positions count samples from the start of the run, across epochs: a resume needs one number, and a global
batch may begin in one epoch and end in the next. torch is imported only when a permutation is computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from trainfleet.errors import InputError, Problem
from trainfleet.training.data.dealing import WHOLE, Part

if TYPE_CHECKING:
    import torch

    from trainfleet.training.recipe.schema import Recipe


class Order(Protocol):
    """An endless order of `size` samples, epoch after epoch."""

    size: int
    by_block: ClassVar[bool]
    """Whether samples are read block by block, so that each rank is dealt samples of few blocks."""

    def indices(self, start: int, count: int) -> list[int]:
        """The samples at `count` positions from `start` on, counted from the run's start."""
        ...

    def upcoming(self, start: int, count: int, part: Part = WHOLE) -> list[int]:
        """Samples to pass to `Workload.prefetch` before a rank reads its part of `count` positions from
        `start`; may look further ahead.
        """
        ...


@dataclass
class SampleOrder:
    """A permutation of all samples per epoch (`shuffled`), or the samples in stored order.

    Positions may be queried in any order. Keeps the permutation of an epoch, 8 bytes per sample; of two
    where an epoch ends, because later batches are built ahead of the position.
    """

    seed: int
    size: int
    shuffled: bool = True
    by_block: ClassVar[bool] = False
    _permutations: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False)

    def index(self, position: int) -> int:
        """The sample at a position, counted from the run's start."""
        return self.indices(position, 1)[0]

    def indices(self, start: int, count: int) -> list[int]:
        """The samples at `count` positions from `start` on."""
        found: list[int] = []
        while len(found) < count:
            epoch, place = divmod(start + len(found), self.size)
            found += self._piece(epoch, place, min(place + count - len(found), self.size))
        return found

    def upcoming(self, start: int, count: int, part: Part = WHOLE) -> list[int]:  # noqa: ARG002 - as others
        """The same as `indices`: a full permutation is for data that is not streamed."""
        for past in [each for each in self._permutations if each < start // self.size]:
            del self._permutations[past]
        return self.indices(start, count)

    def _piece(self, epoch: int, first: int, end: int) -> list[int]:
        if not self.shuffled:
            return list(range(first, end))
        if epoch not in self._permutations:
            if len(self._permutations) > 1:
                self._permutations.clear()
            self._permutations[epoch] = permutation(self.seed, epoch, self.size).numpy()
        piece: list[int] = self._permutations[epoch][first:end].tolist()
        return piece


class WindowOrder:
    """A shuffle for data that is read block by block: blocks in random order, and samples shuffled over
    `window` blocks at a time.

    At most `window` blocks are in use at any position, and resuming within an epoch needs only these.
    Memory is a few numbers per block and one window of indices. Each sample is equally likely at each
    position, but the samples of a block come within one window: with sorted sources, the mean of a batch of
    G samples varies about 1 + G/W times as much as under a full shuffle over many blocks. `scatter` in
    `prepare` removes that.

    Args:
        seed: seed of the run.
        rows: samples per block; block b's samples follow those of block b - 1.
        window: number of blocks that are shuffled together.
    """

    by_block: ClassVar[bool] = True

    def __init__(self, seed: int, rows: Sequence[int], window: int) -> None:
        self.seed, self.window = seed, window
        self._rows = np.asarray(rows, dtype=np.int64)
        self._first = np.concatenate(([0], np.cumsum(self._rows)))
        self.size = int(self._first[-1])
        self._epochs: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._windows: dict[tuple[int, int], NDArray[np.int64]] = {}
        self._last_upcoming: tuple[Any, list[int]] = None, []

    def indices(self, start: int, count: int) -> list[int]:
        """The samples at `count` positions from `start` on."""
        found: list[int] = []
        while len(found) < count:
            epoch, place = divmod(start + len(found), self.size)
            number, first = self._window_at(epoch, place)
            samples = self._samples(epoch, number)
            found += samples[place - first : place - first + count - len(found)].tolist()
        return found

    def upcoming(self, start: int, count: int, part: Part = WHOLE) -> list[int]:
        """One sample of each block that the part of the positions needs, then of each block of the next
        window: `part.margin` covers what a batch deviates from its window, and a block outside is rare.

        Returns the same list object while nothing changes.
        """
        windows, place, end, beyond = [], start, start + count, False
        while not beyond:
            beyond = place >= end
            epoch, within = divmod(place, self.size)
            number, _ = self._window_at(epoch, within)
            windows.append((epoch, number))
            place += int(self._epoch(epoch)[1][number]) - within
        if (windows, part) != self._last_upcoming[0]:
            blocks = [part.of(self._blocks(*window), self._rows) for window in windows]
            self._last_upcoming = (
                (windows, part),
                [
                    int(self._first[block])
                    for block in dict.fromkeys(block for each in blocks for block in each)
                ],
            )
        return self._last_upcoming[1]

    def _blocks(self, epoch: int, number: int) -> NDArray[np.int64]:
        """The blocks of a window."""
        return self._epoch(epoch)[0][number * self.window : (number + 1) * self.window]

    def _epoch(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """An epoch's blocks in order, and the position within the epoch at which each window ends."""
        if epoch not in self._epochs:
            if len(self._epochs) > 1:
                self._epochs.clear()
            blocks = permutation(self.seed, epoch, len(self._rows)).numpy()
            ends = np.add.reduceat(self._rows[blocks], np.arange(0, len(blocks), self.window)).cumsum()
            self._epochs[epoch] = blocks, ends
        return self._epochs[epoch]

    def _window_at(self, epoch: int, place: int) -> tuple[int, int]:
        """The window that holds a position of an epoch, and that window's first position."""
        ends = self._epoch(epoch)[1]
        number = int(np.searchsorted(ends, place, side="right"))
        return number, int(ends[number - 1]) if number else 0

    def _samples(self, epoch: int, number: int) -> NDArray[np.int64]:
        if (epoch, number) not in self._windows:
            if len(self._windows) > 1:
                self._windows.clear()
            blocks = self._blocks(epoch, number)
            members = np.concatenate(
                [np.arange(self._first[block], self._first[block + 1]) for block in blocks]
            )
            self._windows[epoch, number] = members[
                permutation(self.seed, epoch, len(members), f"window {number}").numpy()
            ]
        return self._windows[epoch, number]


def make_order(recipe: Recipe, workload: Any) -> Order:
    """The order of the training samples as the recipe's `order` section configures it.

    `shuffle: auto` is a windowed shuffle for a workload that streams its blocks, else a full permutation.

    Raises:
        InputError: the recipe requests a windowed shuffle of a workload without blocks.
    """
    settings = recipe.order
    blocks = workload.blocks("train")
    if settings.shuffle == "window" and blocks is None:
        what = f"`window` shuffles over blocks, and the workload `{recipe.workload.name}` has none"
        raise InputError(
            "there are no blocks to shuffle", [Problem("order.shuffle", what, "use `full`, or omit it")]
        )
    windowed = settings.shuffle == "window" or (settings.shuffle == "auto" and workload.streamed)
    if windowed and blocks is not None:
        return WindowOrder(recipe.seed, blocks, settings.window_blocks)
    return SampleOrder(recipe.seed, workload.size("train"), shuffled=settings.shuffle != "none")


def check_sizes(workload: Any, world_size: int) -> None:
    """Require samples in every split, and at least one per rank in the training split.

    Raises:
        InputError: names every split that is too small.
    """
    problems = []
    size = workload.size("train")
    if size < world_size:
        problems.append(
            Problem(
                "scaling.workers",
                f"the train split has {size} samples for {world_size} ranks",
                "use fewer workers or more data",
            )
        )
    empty = [split for split in ("validation", "test") if workload.size(split) < 1]
    problems += [
        Problem("workload", f"the {split} split is empty", "add data, or raise its share") for split in empty
    ]
    if problems:
        raise InputError("there is too little data", problems)


def permutation(seed: int, epoch: int, size: int, part: str = "") -> torch.Tensor:
    """The permutation of an epoch (or of a named part of it): a function of seed, epoch and name alone."""
    import torch

    digest = hashlib.sha256(f"{seed}:{epoch}{f':{part}' if part else ''}".encode()).digest()
    return torch.randperm(size, generator=torch.Generator().manual_seed(int.from_bytes(digest[:7])))


def spread(size: int, limit: int | None) -> Sequence[int]:
    """At most `limit` of `size` samples, evenly spaced and always the same: the samples of a validation."""
    if limit is None or limit >= size:
        return range(size)  # not a list, which takes gigabytes for a large split
    return [place * size // limit for place in range(limit)]


def share(indices: Sequence[int], micro_batch: int, rank: int, world_size: int) -> list[list[int]]:
    """A rank's batches of a validation, assigned round robin; ranks may get different numbers of batches."""
    starts = range(rank * micro_batch, len(indices), world_size * micro_batch)
    return [list(indices[start : start + micro_batch]) for start in starts]
