"""Finds the damage of committed checkpoints. All ranks share the verification of one checkpoint."""

from __future__ import annotations

from typing import Any

from trainfleet.errors import TrainfleetError
from trainfleet.training.checkpoint.errors import explain_read
from trainfleet.training.checkpoint.files import TornError, read_marker, require_sizes
from trainfleet.training.checkpoint.verified import VerifiedFiles, share_of
from trainfleet.training.runtime.collectives import Ranks
from trainfleet.training.stores import Store, StoreError


def damage_of(store: Store, name: str, ranks: Ranks, verified: VerifiedFiles) -> str | None:
    """The damage of a checkpoint, the same on all ranks. Rank 0 reads the manifest and compares the sizes,
    and each rank verifies the checksums of a share of the files, and keeps it in `verified`. Collective.

    Raises:
        StoreError: the store does not respond.
    """
    files, damage = read_manifest(store, name, ranks)
    if damage is not None:
        return str(damage)
    failure: TrainfleetError | None = None
    try:
        mine = share_of(files, ranks.rank, ranks.world_size)
        verified.verify(store, name, {file: files[file] for file in mine})
    except TornError as error:
        damage = str(error)
    except StoreError as error:
        failure = error
    ranks.raise_together(failure)
    first = next((each for each in ranks.gather(damage) if each), None)
    found: str | None = ranks.broadcast(first)
    if found is not None:
        verified.release()
    return found


def read_manifest(store: Store, name: str, ranks: Ranks) -> tuple[dict[str, dict[str, Any]], str | None]:
    """The files of a checkpoint's manifest, and how those of the store differ in number or size. Collective;
    rank 0 alone reads.

    Raises:
        StoreError: the store does not respond.
    """

    def compare() -> tuple[dict[str, dict[str, Any]], str | None]:
        try:
            files: dict[str, dict[str, Any]] = read_marker(store, name)["files"]
            require_sizes(store, name, files)
        except TornError as error:
            return {}, str(error)
        return files, None

    found: tuple[dict[str, dict[str, Any]], str | None]
    found = ranks.on_first(lambda: explain_read(store.at(name), compare))
    return found
