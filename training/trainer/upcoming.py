"""The global batches of the next steps, so that data can be read and batches built ahead of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

from trainfleet.training.data.dealing import part_of
from trainfleet.training.data.order import Order
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.controllers import Controllers
from trainfleet.training.workloads import Split

GlobalBatch = tuple[list[int], bool]
"""Samples, and whether the step measures its gradient's norm over the first half too."""


class Prefetches(Protocol):
    """What reads the samples: the `BatchLoader`."""

    def prefetch(self, split: Split, indices: Sequence[int]) -> Any:
        """Open the blocks of these samples in the background; returns immediately."""
        ...


class UpcomingSteps:
    """The samples of the next step, and those of later ones if the controllers change nothing until then.

    Args:
        order: of the samples.
        reader: its `prefetch` receives the samples that come next.
        controllers: of the batch sizes.
        depth: how many micro batches each rank builds ahead.
        context: rank and number of ranks.
    """

    def __init__(
        self, order: Order, reader: Prefetches, controllers: Controllers, depth: int, context: RunContext
    ) -> None:
        self._order, self._reader, self._controllers = order, reader, controllers
        self._depth, self._context = depth, context
        # Each step is asked for once before it comes and once when it comes.
        self._indices = functools.lru_cache(maxsize=depth + 2)(order.indices)

    def at(self, step: int, position: int) -> tuple[list[int], list[GlobalBatch]]:
        """The samples of step `step` (from 0), which starts at `position`, and the batches after it."""
        controllers, context = self._controllers, self._context
        size = controllers.global_batch
        accumulation = -(-size // (controllers.micro_batch * context.world_size))
        steps = -(-self._depth // accumulation)
        part = part_of(context.rank, context.world_size, size)
        self._reader.prefetch("train", self._order.upcoming(position, (1 + max(1, steps)) * size, part))
        samples = self._indices(position, size)
        later = [
            (self._indices(position + more * size, size), controllers.measures_noise(step + more))
            for more in range(1, steps + 1)
            if position + more * size < controllers.samples
        ]
        return samples, later
