"""The plain values of a checkpoint, as far as each rank needs them.

They have a part for each rank, so they grow with the number of ranks: rank 0 alone reads them, and hands each
rank its own. If every rank read all, a start of 1,024 ranks would read 15 GB of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainfleet.training.checkpoint.checkpoints import Checkpoints


@dataclass(frozen=True)
class RankValues:
    """Plain values of a checkpoint.

    Attributes:
        shared: those that are the same on all ranks.
        written_by: how many ranks wrote it.
        own: those of this rank; None if another number of ranks wrote it.
        ranks: those of all ranks on rank 0; empty on the others.
    """

    shared: dict[str, Any]
    written_by: int
    own: Any
    ranks: list[Any]


def read_rank_values(checkpoints: Checkpoints, name: str) -> RankValues:
    """Read a checkpoint's plain values. Collective.

    Raises:
        CheckpointError: it cannot be read.
    """
    found: list[Any] = []

    def read() -> tuple[dict[str, Any], int]:
        plain = checkpoints.read(name)
        found.extend(plain["ranks"])
        return plain["shared"], len(found)

    ranks = checkpoints.loop_ranks
    shared, written_by = ranks.on_first(read)
    own = ranks.scatter(found or None) if written_by == ranks.world_size else None
    return RankValues(shared, written_by, own, found)
