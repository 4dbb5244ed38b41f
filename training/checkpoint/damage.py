"""Finds the damage of committed checkpoints. All ranks share the verification of one checkpoint."""

from __future__ import annotations

from trainfleet.errors import TrainfleetError
from trainfleet.training.checkpoint.files import TornError, read_marker, verify
from trainfleet.training.runtime.collectives import Ranks
from trainfleet.training.stores import Store, StoreError


def damage_of(store: Store, name: str, ranks: Ranks) -> str | None:
    """The damage of a checkpoint, the same on all ranks; each rank verifies a share of the files. Collective.

    Raises:
        StoreError: the store does not respond.
    """
    damage: str | None = None
    failure: TrainfleetError | None = None
    try:
        files = read_marker(store, name)["files"]
        verify(store, name, files, lambda number: number % ranks.world_size == ranks.rank)
    except TornError as error:
        damage = str(error)
    except StoreError as error:
        failure = error
    ranks.raise_together(failure)
    first = next((each for each in ranks.gather(damage) if each), None)
    found: str | None = ranks.broadcast(first)
    return found
