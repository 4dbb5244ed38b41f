"""Overhead of Ray: the same recipe launched by `--on local` (Ray Train) and by `--on torchrun`.

    python -m benchmarks.overhead [--smoke] [--json]

Whole runs alternate, each round in the other order, so that other load slows both. It compares the steady
steps (the first ones warm up caches and are excluded) and the time to the first step. The losses of all runs
must be equal bit for bit.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import command
from trainfleet.errors import TrainfleetError

PLACES = ("local", "torchrun")
TARGET = 1.01
WARM_UP = 15
"""Steps that are excluded: Ray's own processes are still starting while the first steps run."""
BATCH = ("batch.global_batch=256", "batch.micro_batch=128")
"""About 0.4 s of compute per step on two cores."""
PACKAGES = ("torch", "ray")


class Timed(NamedTuple):
    """One run: seconds of each steady step, seconds until the first step was done, and the losses."""

    steps: list[float]
    first_step: float
    losses: list[float]


def measure(recipe: str, steps: int, rounds: int, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Measure everything and return the document that `--json` prints. Times are in seconds.

    Raises:
        TrainfleetError: a run failed, or the losses differ.
    """
    runs: dict[str, list[Timed]] = {place: [] for place in PLACES}
    with tempfile.TemporaryDirectory(prefix="trainfleet-overhead-") as folder:
        for number in range(rounds):
            for place in PLACES if number % 2 == 0 else reversed(PLACES):
                print(f"round {number + 1}/{rounds}: {place}", file=sys.stderr)
                runs[place].append(timed(recipe, place, steps, Path(folder) / f"{number}-{place}", changes))
    if any(run.losses != runs["torchrun"][0].losses for place in PLACES for run in runs[place]):
        raise TrainfleetError("the launchers did not train the same model: their losses differ")
    medians = {place: [statistics.median(run.steps) for run in runs[place]] for place in PLACES}
    ratios = [ray / plain for ray, plain in zip(medians["local"], medians["torchrun"], strict=True)]
    return {
        **command.environment(PACKAGES),
        "recipe": " ".join((recipe, *changes)),
        "steps": steps,
        "rounds": rounds,
        "step_seconds": {
            place: figures([step for run in runs[place] for step in run.steps]) for place in PLACES
        },
        "first_step_seconds": {place: figures([run.first_step for run in runs[place]]) for place in PLACES},
        "ratio": {
            "of medians": round(pooled(runs["local"]) / pooled(runs["torchrun"]), 4),
            "median of rounds": round(statistics.median(ratios), 4),
        },
        "target": TARGET,
    }


def timed(recipe: str, place: str, steps: int, storage: Path, more: Sequence[str] = ()) -> Timed:
    """Train once, with `more` overrides of the recipe.

    Raises:
        TrainfleetError: the run failed.
    """
    changes = [
        f"steps={steps}",
        "scaling.standby=false",  # its imports would slow the first steps
        "log.every=1",
        f"validation.every={steps}",
        f"checkpoint.every={steps}",
        "log.tensorboard=false",
        "optimizer.warmup=1",
        *more,
    ]
    launch = [str(Path(sys.executable).with_name("trainfleet")), "launch", recipe, *changes]
    launch += ["--on", place, "--run", "run", "--storage", str(storage), "--json"]
    done = subprocess.run(launch, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrainfleetError(f"{recipe} failed on {place}: {done.stderr.strip()}")
    rows = [
        json.loads(line)
        for line in (storage / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    train = [row for row in rows if row["kind"] == "train"]
    record = json.loads((storage / "run" / "run.json").read_text(encoding="utf-8"))["launches"][-1]
    return Timed(
        [row["step_seconds"] for row in train][min(WARM_UP, steps // 2) :],
        record["first_step_seconds"],
        [row["loss"] for row in train],
    )


def pooled(runs: list[Timed]) -> float:
    """Return the median of the steady steps of all runs."""
    return statistics.median([step for run in runs for step in run.steps])


def figures(times: list[float]) -> dict[str, Any]:
    """Return the median, smallest and largest time, and the count."""
    return {**command.summary(times, 4), "count": len(times)}


def show(document: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md."""
    command.show_environment(document)
    print(f"{document['recipe']}, {document['steps']} steps, {document['rounds']} rounds\n")
    print("| what | median s | min | max | count | target |\n|---|---|---|---|---|---|")
    for what, key in (
        ("steady step", "step_seconds"),
        ("time to the first step", "first_step_seconds"),
    ):
        for place, row in document[key].items():
            cells = " | ".join(f"{row[key]:.4f}" for key in ("median", "least", "most"))
            print(f"| {what}, {place} | {cells} | {row['count']} | |")
    for name, value in document["ratio"].items():
        print(f"| step of Ray / step of torchrun, {name} | {value:.4f} | | | | <= {document['target']} |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    return measure(name or "lm-tiny", 6, 1) if smoke else measure(name or "lm-small", 60, 3, BATCH)


def main() -> int:
    """Measure and print; `lm-small` by default, in a smoke run `lm-tiny`."""
    return command.run(__doc__, "recipe", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
