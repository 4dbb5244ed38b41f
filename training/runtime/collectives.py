"""All ranks of a run talking about plain values over a gloo group of their own, beside the one that the step
loop uses.

Used by checkpoints: one for the step loop's thread, one for the thread that writes. Easy to get wrong:
collectives of two
threads on one group mix up and crash, so a group belongs to one thread; and every rank must make its groups
in the same order.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trainfleet.errors import Problem, TrainfleetError

Result = TypeVar("Result")
LONGEST = timedelta(hours=6)
"""An upload may take long, and the other ranks wait for it; a rank that dies is noticed at once, by its
connection.
"""


class Ranks:
    """The ranks of the default process group; one alone where there is none. Its methods must be called on
    every rank.
    """

    def __init__(self, timeout: timedelta = LONGEST) -> None:
        several = dist.is_initialized() and dist.get_world_size() > 1
        self.rank, self.world_size = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)
        self.group: Any = dist.new_group(backend="gloo", timeout=timeout) if several else None

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        if self.group is None:
            return flag
        value = torch.tensor(int(flag))
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.group)
        return bool(value.item())

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks, on rank 0; an empty list elsewhere."""
        if self.group is None:
            return [value]
        values: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object(value, values, dst=0, group=self.group)
        return values or []

    def scatter(self, values: list[Any] | None) -> Any:
        """Rank 0's list, one value to each rank."""
        if self.group is None:
            assert values is not None
            return values[0]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, values, src=0, group=self.group)
        return mine[0]

    def share(self, value: Any) -> Any:
        """Rank 0's value, to all."""
        if self.group is None:
            return value
        message = [value]
        dist.broadcast_object_list(message, src=0, group=self.group)
        return message[0]

    def on_first(self, action: Callable[[], Result]) -> Result:
        """Let rank 0 act and give its plain result to all; its `TrainfleetError` is raised on all of them."""
        outcome: tuple[Any, TrainfleetError | None] = (None, None)
        if self.rank == 0:
            try:
                outcome = (action(), None)
            except TrainfleetError as error:
                outcome = (None, error)
        result, told = self.share((outcome[0], portable(outcome[1])))
        if told is not None:
            raise outcome[1] or revived(told)
        return result  # type: ignore[no-any-return]  # what rank 0's action returned

    def together(self, error: TrainfleetError | None) -> None:
        """Raise on every rank where any has an error: the first rank's that has one."""
        told = self.share(next((each for each in self.gather(portable(error)) if each is not None), None))
        if told is not None:
            raise error or revived(told)

    def close(self) -> None:
        """Give the group up; the others do the same at about this time."""
        if self.group is not None and dist.is_initialized():
            with contextlib.suppress(Exception):
                dist.destroy_process_group(self.group)
        self.group = None


def portable(error: TrainfleetError | None) -> bytes | None:
    """An error as bytes that another rank can revive (an exception itself loses its arguments on the way)."""
    if error is None:
        return None
    return pickle.dumps(
        (type(error), error.summary, [(each.where, each.what, each.fix) for each in error.problems])
    )


def revived(told: bytes) -> TrainfleetError:
    """The error that `portable` took apart."""
    kind, summary, problems = pickle.loads(told)
    error: TrainfleetError = kind(summary, [Problem(*each) for each in problems])
    return error
