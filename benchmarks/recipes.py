"""The recipes that train on two CPUs within minutes: how long, and how good against a simple model.

    python -m benchmarks.recipes [--recipe NAME] [--smoke] [--json]

Each recipe is trained once as its users would, by Ray Train on this machine. The simple model is the
report's: a bigram model, the commonest class or the nearest mean, fitted to the same data.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import command
from trainfleet.errors import Problem, TrainfleetError

RECIPES = ("lm-small", "vision-small", "speech-small")
SMOKE = ("vision-small", "steps=20", "validation.every=20", "checkpoint.every=20")
PACKAGES = ("torch", "ray")
TRAINFLEET = str(Path(sys.executable).with_name("trainfleet"))


def measure(runs: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """Train recipes (names with overrides) and return what their reports say.

    Raises:
        TrainfleetError: a training failed.
    """
    return {**command.environment(PACKAGES), "rows": {run[0]: _trained(run) for run in runs}}


def _trained(run: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="trainfleet-recipes-") as folder:
        _call("train", *run, "--run", "run", "--storage", folder, "--json")
        report = _call("report", f"{folder}/run", "--json")
    kept = ("steps", "seconds", "time", "figure", "best_validation", "test", "baseline")
    return {name: report[name] for name in kept}


def _call(*arguments: str) -> Any:
    done = subprocess.run([TRAINFLEET, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        what = " ".join(arguments[:2])
        raise TrainfleetError(f"trainfleet {what} failed", [Problem(what, done.stderr.strip()[-300:])])
    return json.loads(done.stdout)


def show(document: dict[str, Any]) -> None:
    """Print the table of docs/benchmarks.md."""
    command.show_environment(document)
    print("\n| recipe | steps | seconds | computing | metric | validation | test | simple model |")
    print("|---|---|---|---|---|---|---|---|")
    for name, row in document["rows"].items():
        simple = row["baseline"]
        cells = [
            f"{row['seconds']:.0f}",
            f"{row['time'].get('computing', 0):.0f}",
            row["figure"],
            *("" if row[key] is None else f"{row[key]:.3f}" for key in ("best_validation", "test")),
            f"{simple['name']} {simple['value']:.3f}" if simple else "",
        ]
        print(f"| {name} | {row['steps']} | {' | '.join(cells)} |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    names = [(name,)] if name else [(each,) for each in RECIPES]
    return measure([SMOKE] if smoke else names)


def main() -> int:
    """Measure and print; the three small recipes by default."""
    return command.run(__doc__, "recipe", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
