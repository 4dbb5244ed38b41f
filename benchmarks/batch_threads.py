"""What a thread that builds batches ahead costs or saves the step loop on a CPU.

    python -m benchmarks.batch_threads [--recipe NAME] [--smoke] [--json]

One process trains the same model with two loaders, `data_loading.workers` 0 and 1, in turn by blocks of
steps, so that other load on the machine slows both. A step takes a batch, computes loss and gradients and
steps the optimizer; after features of speech, it computes matrix products for as long as building a batch
takes. Each round swaps the order. The batches must be equal bit for bit.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import command
from benchmarks.input_engines import NAME as FEATURES
from trainfleet.errors import TrainfleetError
from trainfleet.training.data import SampleOrder
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.batch_loader import BatchLoader
from trainfleet.training.workloads import Workload, make_workload

RECIPES: dict[str, tuple[str, tuple[str, ...], int]] = {
    "lm-tiny": ("lm-tiny", (), 6),
    "vision-small": ("vision-small", (), 6),
    "speech features": (
        "speech-small",
        (f"workload.name={FEATURES}", "workload.data.utterances=60", "workload.data.longest=20"),
        3,
    ),
}
"""By name: a recipe, its changes, and the steps of a block. The features are computed on the fly."""
PACKAGES = ("torch", "numpy")
WARM_UP = 10
ROUNDS = 120


class Side:
    """The steps with one loader."""

    def __init__(self, recipe: Recipe, workload: Workload, cache: Path, products: int) -> None:
        self.loader = BatchLoader(recipe, workload, "cpu", lambda *_: None, lambda *_: None, cache=cache)
        self.order, self.workload = SampleOrder(1, workload.size("train")), workload
        torch.manual_seed(1)
        self.model = workload.build_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.size, self.products = recipe.batch.micro_batch, products
        self.digest, self.taken, self.waited = hashlib.sha256(), 0, 0.0

    def step(self) -> None:
        """Take a batch and train on it, or compute products in the place of training."""
        start = self.taken * self.size
        ahead = range(1, self.loader.depth + 1)
        later = [self.order.indices(start + number * self.size, self.size) for number in ahead]
        began = time.perf_counter()
        batch = self.loader.take("train", self.order.indices(start, self.size), later)
        self.waited += time.perf_counter() - began
        self.taken += 1
        for value in batch.values():
            self.digest.update(value.numpy().tobytes())
        if self.products:
            multiply(self.products)
            return
        self.workload.wants_metrics = False
        self.workload.forward_loss(self.model, batch).loss.backward()  # type: ignore[no-untyped-call]  # torch is partly typed
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def block(self, steps: int) -> tuple[float, float, float]:
        """Seconds, CPU seconds of all threads, and seconds of waiting for batches, of some steps, until the
        batches ahead of them are built: as many as were built before them.
        """
        self.waited, cpu, began = 0.0, time.process_time(), time.perf_counter()
        for _ in range(steps):
            self.step()
        for task in self.loader._ahead.get("train", ()):
            task.result.result()
        return time.perf_counter() - began, time.process_time() - cpu, self.waited


def measure(names: list[str], rounds: int, steps: int | None = None) -> dict[str, Any]:
    """Measure and return the document that `--json` prints. `steps` of a block, if not those of RECIPES.

    Raises:
        TrainfleetError: the loaders did not build the same batches.
    """
    load = os.getloadavg()[0]
    found = {name: compare(name, steps, rounds) for name in names}
    return {
        **command.environment(PACKAGES),
        "load_at_start": round(load, 2),
        "rounds": rounds,
        "recipes": found,
    }


def compare(name: str, steps: int | None, rounds: int) -> dict[str, Any]:
    """The two loaders on one recipe, with one thread of torch. Times are in milliseconds per step."""
    recipe_name, changes, usual = RECIPES.get(name, (name, (), 30))
    steps = steps or usual
    torch.set_num_threads(1)
    sides: dict[int, Side] = {}
    rows: list[dict[int, tuple[float, float, float]]] = []
    products = 0
    with tempfile.TemporaryDirectory(prefix="trainfleet-threads-") as folder:
        for workers in (0, 1):
            settings = (*changes, f"data_loading.workers={workers}", "scaling.workers=1")
            recipe = load_recipe(recipe_name, settings)
            workload = sides[0].workload if sides else make_workload(recipe, Path(folder))
            if not sides and recipe.workload.name == FEATURES:
                products = products_of_a_batch(workload, recipe)
            sides[workers] = Side(recipe, workload, Path(folder), products)
        for number in range(-1, rounds):
            if number % 10 == 0:
                print(f"{name}: round {number}/{rounds}", file=sys.stderr)
            order = (0, 1) if number % 2 else (1, 0)
            row = {workers: sides[workers].block(WARM_UP if number < 0 else steps) for workers in order}
            rows += [row] if number >= 0 else []
        for side in sides.values():
            side.loader.close()
    if sides[0].digest.digest() != sides[1].digest.digest():
        raise TrainfleetError(f"{name}: the loaders built different batches")

    def per_step(workers: int, place: int) -> float:
        return round(1e3 * statistics.median(row[workers][place] for row in rows) / steps, 3)

    return {
        "steps": steps,
        "step_ms": per_step(0, 0),
        "build_ms": per_step(0, 2),
        "wait_ms": per_step(1, 2),
        "least_ratio": round(min(row[1][0] for row in rows) / min(row[0][0] for row in rows), 3),
        "least_cpu_ratio": round(min(row[1][1] for row in rows) / min(row[0][1] for row in rows), 3),
        "seconds_ratio": command.summary([row[1][0] / row[0][0] for row in rows], 3),
        "cpu_ratio": command.summary([row[1][1] / row[0][1] for row in rows], 3),
    }


def multiply(count: int) -> None:
    """Compute a number of products of two matrices of 256 x 256, each some hundred microseconds."""
    matrix = torch.ones(256, 256)
    for _ in range(count):
        torch.mm(matrix, matrix)


def products_of_a_batch(workload: Workload, recipe: Recipe) -> int:
    """How many products take as long as building a batch: of the shortest of five measurements each."""

    def shortest(call: Callable[[], Any]) -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        return min(times)

    indices = list(range(recipe.batch.micro_batch))
    building = shortest(lambda: workload.batch("train", indices))
    return max(1, round(100 * building / shortest(lambda: multiply(100))))


def show(document: dict[str, Any]) -> None:
    """Print the table of docs/benchmarks.md."""
    command.show_environment(document)
    print(f"{document['rounds']} rounds; load {document['load_at_start']} at the start\n")
    ratios = "seconds with / without: median | min | max | of the fastest blocks | CPU seconds of these"
    print(f"| recipe | step, ms | build, ms | {ratios} |")
    print("|---|---|---|---|---|---|---|---|")
    for name, row in document["recipes"].items():
        least = (row["least_ratio"], row["least_cpu_ratio"])
        cells = [row["step_ms"], row["build_ms"], *row["seconds_ratio"].values(), *least]
        print(f"| {name} | {' | '.join(map(str, cells))} |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    if smoke:
        return measure([name or "lm-tiny"], 2, 20)
    return measure([name] if name else list(RECIPES), ROUNDS)


def main() -> int:
    """Measure and print."""
    return command.run(__doc__, "recipe", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
