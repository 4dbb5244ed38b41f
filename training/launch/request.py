"""What the user asked to launch, and the platforms that were named."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from trainfleet.training.launch.code import Code
from trainfleet.training.launch.options import LaunchOptions
from trainfleet.training.launch.platform_outputs import NamedPlatform


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
    options: LaunchOptions | None = None
    """Those of the launcher `on`; None: its defaults."""
    job: str = ""
    """What the ranks do instead of training: the JSON of `trainfleet.training.inference.job.Job`."""
    code: str | None = None
    """The folder with the user's code; None: the recipe's folder if its workload is a file there."""
    launched_code: str | None = None
    """The URL of the code of a run that was launched before, which `runs attach` follows."""


@dataclass(frozen=True)
class Target:
    """Where a run is launched. `run_dir` is its folder on this machine."""

    request: Request
    platforms: tuple[NamedPlatform, ...]
    run_dir: Path
    code: Code | None = None
    launch: str = field(default_factory=lambda: secrets.token_hex(8))
    """Identifies this launch."""

    @property
    def launch_id(self) -> str:
        """The launch that it starts or follows."""
        options = self.request.options
        return (options.followed_launch if options is not None else None) or self.launch

    @property
    def code_url(self) -> str:
        """What the run's processes get as TRAINFLEET_CODE; empty without code."""
        return self.code.url if self.code is not None else ""

    @property
    def platform(self) -> NamedPlatform | None:
        """The platform, or the first of several."""
        return self.platforms[0] if self.platforms else None
