"""Where a run is to be started: what the user asked for beside the recipe, and the platforms whose outputs were given.

Used by every way to start a run. Easy to get wrong: with `--context` there is no platform, so a cluster is then described by the
options alone, and everything that a stack would have said of it is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from training.launch.platform import Place

if TYPE_CHECKING:
    from training.launch.start import Request


@dataclass(frozen=True)
class Target:
    """What a way to start a run is told; `run_dir` is the run's folder on this machine."""

    request: Request
    places: tuple[Place, ...]
    run_dir: Path

    @property
    def place(self) -> Place | None:
        """The platform, or the first of several."""
        return self.places[0] if self.places else None
