"""What does the step loop cost? Its steps against those of a minimal hand-written DDP loop, in turn, in the
same two processes.

    python -m benchmarks.loop [--smoke] [--json]

Each step of the run is followed by one of the bare loop (benchmarks/bare.py) on as many samples, so that
whatever else the machine
does slows both. A step of the run is the whole of it: data, gradient, guards, metrics, logging, asking
whether to stop. Easy to
get wrong: the loop waits for all ranks in every step and so does the bare one, or the one after the other
would pay for it.
"""

from __future__ import annotations

import datetime
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import command, ranks
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.runtime import local_resources

TARGET = 1.02
WARM_UP = 5
COURSE = (
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
    said = [
        *COURSE,
        f"steps={steps}",
        "optimizer.warmup=1",
        f"scaling.workers={world_size}",
        f"scaling.use_gpu={str(use_gpu).lower()}",
        *changes,
    ]
    with tempfile.TemporaryDirectory(prefix="trainfleet-loop-") as folder:
        settings = {"recipe": recipe, "said": said, "folder": folder, "use_gpu": use_gpu}
        found = ranks.start(_interleaved, world_size, settings)
    ours, bare = (
        statistics.median([step for each in found for step in each[name]]) for name in ("ours", "bare")
    )
    pairs = [mine / other for each in found for mine, other in zip(each["ours"], each["bare"], strict=True)]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": local_resources.describe(),
        "load": round(os.getloadavg()[0], 2),
        "recipe": " ".join((recipe, *changes)),
        "steps": len(found[0]["ours"]),
        "step_seconds": {"ours": round(ours, 4), "bare": round(bare, 4)},
        "ratio": {"of medians": round(ours / bare, 4), "median of pairs": round(statistics.median(pairs), 4)},
        "target": TARGET,
        "tokens_per_step": found[0]["tokens"],
        "flops_per_token": found[0]["flops"],
    }


def _interleaved(rank: int, world_size: int, settings: dict[str, Any]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from benchmarks.bare import BareLoop
    from trainfleet.training.trainer.context import RunContext, default_cache
    from trainfleet.training.trainer.loop import train

    recipe = load_recipe(settings["recipe"], settings["said"])
    device = f"cuda:{rank}" if settings["use_gpu"] else "cpu"
    bare = BareLoop(recipe, str(default_cache()), rank, world_size, device)
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    left = 0.0

    def settle() -> float:
        """The moment at which all ranks, and their devices, have come so far."""
        if settings["use_gpu"]:
            torch.cuda.synchronize()
        if dist.is_initialized():
            dist.barrier()
        return time.perf_counter()

    def between_steps() -> bool:  # what the loop asks once a step, on every rank
        nonlocal left
        now = settle()
        if left:
            times["ours"].append(now - left)
        bare.step()
        left = settle()
        times["bare"].append(left - now)
        return False

    context = RunContext(
        Path(settings["folder"]), rank, world_size, rank, world_size, device=device, should_stop=between_steps
    )
    train(recipe, context)
    kept = {name: values[WARM_UP : len(times["ours"])] for name, values in times.items()}
    tokens = recipe.batch.global_batch * bare.workload.sample_tokens
    return {**kept, "tokens": tokens, "flops": bare.workload.flops_per_token}


def show(document: dict[str, Any]) -> None:
    """Print the figures as they go into docs/benchmarks.md."""
    print(f"{document['date']}, {document['machine']}, load {document['load']} at the end")
    print(f"{document['recipe']}, {document['steps']} steps of each, in turn\n")
    print("| what | seconds | target |\n|---|---|---|")
    for name, value in document["step_seconds"].items():
        print(f"| median step, {name} | {value:.4f} | |")
    for name, value in document["ratio"].items():
        print(f"| ours / bare, {name} | {value:.4f} | <= {document['target']} |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    if smoke:
        return measure(name or "lm-tiny", 12)
    return measure(name or "lm-small", 80, ("batch.global_batch=256", "batch.micro_batch=128"))


def main() -> int:
    """Measure and print; `lm-small` by default, in a smoke run `lm-tiny`."""
    return command.run(__doc__, "recipe", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
