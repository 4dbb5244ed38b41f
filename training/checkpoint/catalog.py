"""What is known about the checkpoints in a store: their notes, and which of them are damaged."""

from __future__ import annotations

from typing import Any

from trainfleet.training.checkpoint.files import TornError, committed, read_marker
from trainfleet.training.checkpoint.retention import retained
from trainfleet.training.recipe.schema import CheckpointConfig
from trainfleet.training.stores import Store


class Catalog:
    """The committed checkpoints. Reads each marker once. Methods are not collective."""

    def __init__(self, store: Store, config: CheckpointConfig) -> None:
        self.store, self.config = store, config
        self._damaged: set[str] = set()
        self._notes: dict[str, dict[str, Any]] | None = None

    def notes(self) -> dict[str, dict[str, Any]]:
        """`step` and `metrics` of each checkpoint that is not known to be damaged, oldest first."""
        if self._notes is None:
            self._notes = {}
            for name in committed(self.store):
                try:
                    self._notes[name] = read_marker(self.store, name)["note"]
                except TornError:
                    self._damaged.add(name)
        # A copy, made at once: a thread that removes checkpoints forgets them meanwhile.
        return {name: note for name, note in sorted(dict(self._notes).items()) if name not in self._damaged}

    def add(self, name: str, note: dict[str, Any]) -> None:
        """Record a checkpoint that was committed."""
        self.notes()
        if self._notes is not None:
            self._notes[name] = note

    def forget(self, name: str) -> None:
        """Record that a checkpoint was removed."""
        self._damaged.discard(name)
        if self._notes is not None:
            self._notes.pop(name, None)

    def mark_damaged(self, name: str) -> None:
        """Leave out a checkpoint."""
        self._damaged.add(name)

    def superseded(self, newest: str) -> list[str]:
        """The checkpoints that need not be kept, besides the `newest`."""
        keep = retained(self.notes(), self.config) | {newest}
        return [name for name in self.notes() if name not in keep]
