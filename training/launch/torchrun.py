"""`--on torchrun`: the same loop on this machine without Ray, under torch's elastic agent. For a bare GPU machine, for Slurm,
and as the honest measure of what Ray costs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from training.events import PARENT
from training.launch import machine, process
from training.recipe import Recipe


def check(recipe: Recipe) -> None:
    """Refuse what this machine cannot run.

    Raises:
        InputError: fewer CPUs or GPUs than the workers need.
    """
    machine.require(recipe.scaling)


def command(recipe: Recipe, file: Path) -> list[str]:
    """The command that trains the recipe in `file`."""
    agent = ["--standalone", f"--nproc-per-node={recipe.scaling.workers}", f"--max-restarts={recipe.scaling.restarts}", "--module", "training.run"]
    return [sys.executable, "-m", "training.launch.torchrun", *agent, str(file)]


def main() -> None:
    """torch's elastic agent, which dies with its launcher."""
    if PARENT in os.environ:
        process.die_with(int(os.environ[PARENT]))
    from torch.distributed.run import main as agent

    agent(sys.argv[1:])


if __name__ == "__main__":
    main()
