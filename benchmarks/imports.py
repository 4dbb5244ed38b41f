"""CPU time of the imports that a start waits for, with Python's garbage collector and without.

    python -m benchmarks.imports [--smoke] [--json]

Each import runs in processes of its own, in turn: a rank's, the launcher's of SkyPilot, and for comparison
torch alone. CPU seconds (user and system) of the process from its start to its end, so that other work on
the machine changes little. The first of each compiles Python files and is not counted.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

from benchmarks import command

ROUNDS = 7
PACKAGES = ("torch", "ray", "skypilot")
IMPORTS = {
    "a rank: worker and loop": (
        "from trainfleet.training import worker\n    from trainfleet.training.trainer import loop"
    ),
    "the launcher: SkyPilot": "import sky",
    "torch alone": "import torch",
}
WITHOUT = "from trainfleet.training.runtime.imports import without_collections as chosen"
WITH = "from contextlib import nullcontext as chosen"


def measure(rounds: int) -> dict[str, Any]:
    """Return the CPU seconds of each import."""
    kinds = {"with the collector": WITH, "without": WITHOUT}
    found: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in kinds} for name in IMPORTS}
    for number in range(rounds + 1):
        for name, code in IMPORTS.items():
            for kind, head in kinds.items():
                seconds = _cpu_seconds(f"{head}\nwith chosen():\n    {code}\n")
                if number:
                    found[name][kind].append(seconds)
    rows = {
        name: {kind: command.summary(all_, 2) for kind, all_ in row.items()} for name, row in found.items()
    }
    return {**command.environment(PACKAGES), "rounds": rounds, "rows": rows}


def _cpu_seconds(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def show(document: dict[str, Any]) -> None:
    """Print the table of docs/benchmarks.md."""
    command.show_environment(document)
    print(f"{document['rounds']} processes of each, in turn\n")
    print("| CPU seconds of | with the collector, median (min-max) | without | ratio |\n|---|---|---|---|")
    for name, row in document["rows"].items():
        cells = [f"{each['median']:.2f} ({each['least']:.2f}-{each['most']:.2f})" for each in row.values()]
        ratio = row["without"]["median"] / row["with the collector"]["median"]
        print(f"| {name} | {' | '.join(cells)} | {ratio:.2f} |")


def main() -> int:
    """Measure and print."""
    return command.run(__doc__, "", lambda _, smoke: measure(1 if smoke else ROUNDS), show)


if __name__ == "__main__":
    sys.exit(main())
