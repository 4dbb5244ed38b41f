"""Where a run is to be started: what the user asked for beside the recipe, and the platforms whose outputs
were given.

Used by every way to start a run. Easy to get wrong: with `--context` there is no platform, so a cluster is
then described by the
options alone, and everything that a stack would have said of it is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.training.launch.platform_outputs import Place


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    recipe: str
    overrides: tuple[str, ...] = ()
    on: str = "local"
    run: str | None = None
    storage: str | None = None
    stacks: tuple[str, ...] = ()
    """Platforms: files with outputs, or names of Pulumi stacks."""
    fresh: bool = False
    json: bool = False
    allow_changes: tuple[str, ...] = ()
    context: str | None = None
    """A context of the kubeconfig, for a cluster that no stack describes; `namespace` and `image` go with it."""
    namespace: str | None = None
    image: str | None = None
    pool: str | None = None
    """The node pool whose machines train."""
    cluster: str | None = None
    """A long-lived Ray cluster to train on."""
    detach: bool = False
    within_s: float = 1800.0
    """How long a run elsewhere may wait for its machines."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What one way to start a run alone knows, by its own names."""


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
