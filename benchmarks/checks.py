"""How long each command of `.ci/run` takes, in its order.

    python -m benchmarks.checks [--smoke] [--json]

The caches are as they are: run it in a fresh clone with empty caches for one figure, again for the other.
A command that fails ends it. In a smoke run only `make lint` is run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import command
from trainfleet.errors import TrainfleetError

ROOT = Path(__file__).resolve().parent.parent
AIM_MINUTES = 50
"""Of all commands, with warm caches."""


def commands() -> list[str]:
    """Return the commands of `.ci/run`, without what prepares its shell."""
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    return [line for line in lines if line.startswith(("make ", "python3 "))]


def measure(chosen: Sequence[str]) -> dict[str, Any]:
    """Run commands as `.ci/run` does and return the seconds of each.

    Raises:
        TrainfleetError: a command failed.
    """
    seconds: dict[str, float] = {}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for each in chosen:
        print(f"== {each}", file=sys.stderr, flush=True)
        started = time.perf_counter()
        if subprocess.run(each.split(), cwd=ROOT, env=environment, stdout=sys.stderr, check=False).returncode:
            raise TrainfleetError(f"`{each}` failed")
        seconds[each] = round(time.perf_counter() - started, 1)
    return {**command.environment(), "seconds": seconds}


def show(document: dict[str, Any]) -> None:
    """Print the table of docs/benchmarks.md."""
    command.show_environment(document)
    print("\n| command | minutes | aim |\n|---|---|---|")
    for name, seconds in document["seconds"].items():
        print(f"| `{name}` | {seconds / 60:.1f} | |")
    print(f"| all | {sum(document['seconds'].values()) / 60:.1f} | {AIM_MINUTES} |")


def main() -> int:
    """Run all commands, in a smoke run `make lint`."""

    def chosen(_: str, smoke: bool) -> dict[str, Any]:
        return measure(["make lint"] if smoke else commands())

    return command.run(__doc__, "", chosen, show)


if __name__ == "__main__":
    sys.exit(main())
