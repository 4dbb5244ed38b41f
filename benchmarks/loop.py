"""Overhead of the step loop: its steps compared with those of a minimal hand-written DDP loop.

    python -m benchmarks.loop [--smoke] [--json]

Both run in the same two processes. Each step of the run is followed by one of the minimal loop
(benchmarks/minimal_ddp.py) on as many samples, so that other load on the machine slows both. A step of the
run includes data, gradient, guards, metrics, logging and the check for stop requests.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import command, ranks
from trainfleet.training.recipe.load import load_recipe

TARGET = 1.02
NAMES = {"ours": "step loop", "bare": "minimal DDP"}
WARM_UP = 5
OVERRIDES = (
    "validation.every=100000",
    "checkpoint.every=100000",
    "checkpoint.metric=validation/loss",
    "validation.samples=8",
    "log.tensorboard=false",
)


def measure(
    recipe: str, steps: int, changes: tuple[str, ...] = (), world_size: int = 2, use_gpu: bool = False
) -> dict[str, Any]:
    """Measure and return the document that `--json` prints. Times are in seconds."""
    overrides = [
        *OVERRIDES,
        f"steps={steps}",
        "optimizer.warmup=1",
        f"scaling.workers={world_size}",
        f"scaling.use_gpu={str(use_gpu).lower()}",
        *changes,
    ]
    with tempfile.TemporaryDirectory(prefix="trainfleet-loop-") as folder:
        settings = {"recipe": recipe, "overrides": overrides, "folder": folder, "use_gpu": use_gpu}
        found = ranks.start(_interleaved, world_size, settings)
    ours, minimal = (
        statistics.median([step for each in found for step in each[name]]) for name in ("ours", "bare")
    )
    pairs = [one / other for each in found for one, other in zip(each["ours"], each["bare"], strict=True)]
    return {
        **command.environment(),
        "recipe": " ".join((recipe, *changes)),
        "steps": len(found[0]["ours"]),
        "step_seconds": {"ours": round(ours, 4), "bare": round(minimal, 4)},
        "ratio": {
            "of medians": round(ours / minimal, 4),
            "median of pairs": round(statistics.median(pairs), 4),
        },
        "target": TARGET,
        "tokens_per_step": found[0]["tokens"],
        "flops_per_token": found[0]["flops"],
    }


def _interleaved(rank: int, world_size: int, settings: dict[str, Any]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from benchmarks.minimal_ddp import MinimalDdpLoop
    from trainfleet.training.trainer.context import RunContext, default_cache
    from trainfleet.training.trainer.loop import train

    recipe = load_recipe(settings["recipe"], settings["overrides"])
    device = f"cuda:{rank}" if settings["use_gpu"] else "cpu"
    minimal = MinimalDdpLoop(recipe, default_cache(), rank, world_size, device)
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    resumed = 0.0

    def synchronized() -> float:
        """Wait for all ranks and their devices; returns the time. Without it, one loop would pay for the
        other.
        """
        if settings["use_gpu"]:
            torch.cuda.synchronize()
        if dist.is_initialized():
            dist.barrier()
        return time.perf_counter()

    def between_steps() -> bool:  # the step loop calls it once per step on every rank
        nonlocal resumed
        now = synchronized()
        if resumed:
            times["ours"].append(now - resumed)
        minimal.step()
        resumed = synchronized()
        times["bare"].append(resumed - now)
        return False

    context = RunContext(
        Path(settings["folder"]), rank, world_size, rank, world_size, device=device, should_stop=between_steps
    )
    train(recipe, context)
    kept = {name: values[WARM_UP : len(times["ours"])] for name, values in times.items()}
    tokens = recipe.batch.global_batch * minimal.workload.sample_tokens
    return {**kept, "tokens": tokens, "flops": minimal.workload.flops_per_token}


def show(document: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md."""
    command.show_environment(document)
    print(f"{document['recipe']}, {document['steps']} steps of each, alternating\n")
    print("| what | seconds | target |\n|---|---|---|")
    for name, value in document["step_seconds"].items():
        print(f"| median step, {NAMES[name]} | {value:.4f} | |")
    for name, value in document["ratio"].items():
        print(f"| step loop / minimal DDP, {name} | {value:.4f} | <= {document['target']} |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    if smoke:
        return measure(name or "lm-tiny", 12)
    return measure(name or "lm-small", 80, ("batch.global_batch=256", "batch.micro_batch=128"))


def main() -> int:
    """Measure and print; `lm-small` by default, in a smoke run `lm-tiny`."""
    return command.run(__doc__, "recipe", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
