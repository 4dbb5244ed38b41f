"""Cost of communication: steps of two DDP workers compared with two processes that do not communicate.

    python -m benchmarks.scaling [--smoke] [--json]

Both kinds run in the same two processes on the same two cores and alternate by a few steps, with the same
work per step (about a second of compute per gradient exchange). Shared caches and memory slow both: compared
with a single process, the figure would measure the machine instead of the communication.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import command, ranks
from trainfleet.training.recipe.load import load_recipe

TARGET = 0.97
WORLD_SIZE = 2
SHAPE = (
    "workload.model.layers=6",
    "workload.model.width=256",
    "workload.model.heads=4",
    "workload.model.context=128",
    "batch.micro_batch=8",
)


def measure(
    recipe: str, rounds: int, block: int, turns: int, changes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Measure `rounds` blocks of `block` steps of each kind, with `turns` micro batches a step, and return
    the document of `--json`.
    """
    settings = {
        "recipe": recipe,
        "overrides": [*changes, f"scaling.workers={WORLD_SIZE}"],
        "rounds": rounds,
        "block": block,
        "turns": turns,
    }
    found = ranks.start(_blocks, WORLD_SIZE, settings)
    # Without communication each process finishes by itself; with it, a step ends when both have finished.
    alone = [statistics.mean(each["alone"][number] for each in found) for number in range(rounds)]
    together = [max(each["together"][number] for each in found) for number in range(rounds)]
    ratios = [one / two for one, two in zip(alone, together, strict=True)]
    return {
        **command.environment(),
        "recipe": " ".join((recipe, *changes)),
        "parameters": found[0]["parameters"],
        "rounds": rounds,
        "step_seconds": {
            "side by side": round(statistics.median(alone), 4),
            "two workers": round(statistics.median(together), 4),
        },
        "efficiency": {
            "median of rounds": round(statistics.median(ratios), 4),
            "least": round(min(ratios), 4),
            "most": round(max(ratios), 4),
        },
        "target": TARGET,
    }


def _blocks(rank: int, world_size: int, settings: dict[str, Any]) -> dict[str, Any]:
    import torch.distributed as dist

    from trainfleet.training.trainer.context import RunContext, default_cache
    from trainfleet.training.trainer.optimizer import make_optimizer
    from trainfleet.training.trainer.strategies import make_strategy
    from trainfleet.training.workloads import make_workload

    recipe = load_recipe(settings["recipe"], settings["overrides"])
    workload = make_workload(recipe, default_cache())
    places = {
        "alone": RunContext(Path("unused")),
        "together": RunContext(Path("unused"), rank, world_size, rank, world_size),
    }
    strategies = {
        name: make_strategy(recipe, workload.build_model, context) for name, context in places.items()
    }
    optimizers = {
        name: make_optimizer(recipe.optimizer, strategy.module) for name, strategy in strategies.items()
    }
    size, turns = recipe.batch.micro_batch, settings["turns"]
    batches = [
        workload.batch("train", range((rank * turns + turn) * size, (rank * turns + turn + 1) * size))
        for turn in range(turns)
    ]

    def steps(name: str, count: int) -> float:
        strategy, optimizer = strategies[name], optimizers[name]
        dist.barrier()
        began = time.perf_counter()
        for _ in range(count):
            for turn, batch in enumerate(batches):
                with strategy.grad_sync(last=turn == turns - 1):
                    outcome = workload.forward_loss(strategy.parallel, batch)
                    (outcome.loss / (outcome.num_targets * turns)).backward()
            strategy.clip_grad_norm(recipe.optimizer.grad_clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return (time.perf_counter() - began) / count

    for name in strategies:
        steps(name, 2)
    times: dict[str, list[float]] = {name: [] for name in strategies}
    for number in range(settings["rounds"]):
        for name in strategies if number % 2 == 0 else reversed(strategies):
            times[name].append(steps(name, settings["block"]))
    return {**times, "parameters": strategies["alone"].parameters}


def show(document: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md."""
    command.show_environment(document)
    print(
        f"{document['recipe']}, {document['parameters']:,} parameters, "
        f"{document['rounds']} alternating rounds\n"
    )
    print("| what | value | target |\n|---|---|---|")
    for name, value in document["step_seconds"].items():
        print(f"| seconds per step, {name}, median | {value:.4f} | |")
    for name, value in document["efficiency"].items():
        target = f">= {document['target']}" if "median" in name else ""
        print(f"| efficiency of two workers, {name} | {value:.4f} | {target} |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    return measure(name or "lm-tiny", 2, 2, 2) if smoke else measure(name or "lm-small", 10, 3, 2, SHAPE)


def main() -> int:
    """Measure and print; `lm-small` made larger by default, in a smoke run `lm-tiny`."""
    return command.run(__doc__, "recipe", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
