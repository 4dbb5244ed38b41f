"""Collectives over plain values, in a gloo group apart from the step loop's.

NOTE: a group belongs to one thread, because collectives of two threads on one group crash. Every rank must
create
its groups in the same order.
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
PREPARATION = timedelta(days=14)
"""How long ranks wait for one that prepares data. Their launcher ends them when it fails."""
TIMEOUT = timedelta(hours=6)
"""Covers long uploads, for which the other ranks wait. A dead rank is noticed immediately by its connection.
"""


class Ranks:
    """The ranks of the default process group, or one rank without a group. All methods are collective."""

    def __init__(self, timeout: timedelta = TIMEOUT) -> None:
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
        """Every rank's value in rank order on rank 0; an empty list on the others."""
        if self.group is None:
            return [value]
        values: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object(value, values, dst=0, group=self.group)
        return values or []

    def scatter(self, values: list[Any] | None) -> Any:
        """This rank's value of rank 0's list."""
        if self.group is None:
            assert values is not None
            return values[0]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, values, src=0, group=self.group)
        return mine[0]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value."""
        if self.group is None:
            return value
        message = [value]
        dist.broadcast_object_list(message, src=0, group=self.group)
        return message[0]

    def on_first(self, action: Callable[[], Result]) -> Result:
        """Run `action` on rank 0 and return its plain result on all ranks; its `TrainfleetError` is raised on
        all.
        """
        outcome: tuple[Any, TrainfleetError | None] = (None, None)
        if self.rank == 0:
            try:
                outcome = (action(), None)
            except TrainfleetError as error:
                outcome = (None, error)
        result, packed = self.broadcast((outcome[0], pack_error(outcome[1])))
        if packed is not None:
            raise outcome[1] or unpack_error(packed)
        return result  # type: ignore[no-any-return]  # what rank 0's action returned

    def raise_together(self, error: TrainfleetError | None) -> None:
        """If any rank has an error, raise on every rank: the error of the first rank that has one."""
        packed = self.broadcast(
            next((each for each in self.gather(pack_error(error)) if each is not None), None)
        )
        if packed is not None:
            raise error or unpack_error(packed)

    def close(self) -> None:
        """Destroy the group, which all ranks do at about the same time."""
        if self.group is not None and dist.is_initialized():
            with contextlib.suppress(Exception):
                dist.destroy_process_group(self.group)
        self.group = None


def after_all(action: Callable[[], Result]) -> Result:
    """Run `action`, which may take days on some ranks, on every rank; returns when all ranks have finished.

    NOTE: without this, a rank that is done waits in the next collective, for the time-out of its group.
    """
    ranks = Ranks(PREPARATION)
    result = action()
    ranks.any(False)
    ranks.close()
    return result


def pack_error(error: TrainfleetError | None) -> bytes | None:
    """An error as bytes; a pickled exception loses its arguments."""
    if error is None:
        return None
    return pickle.dumps(
        (type(error), error.summary, [(each.where, each.what, each.fix) for each in error.problems])
    )


def unpack_error(packed: bytes) -> TrainfleetError:
    """The error that `pack_error` packed."""
    kind, summary, problems = pickle.loads(packed)
    error: TrainfleetError = kind(summary, [Problem(*each) for each in problems])
    return error
