"""Memory of a rank and time of a step under ddp, fsdp and hsdp, for a model of about 50 million parameters.

    python -m benchmarks.sharding [--smoke] [--json]

It reports two figures: the bytes of weights, gradients and optimizer that a rank keeps between steps, and the
peak growth of the process from before the model is built until a few steps are done. Each strategy runs in
its own processes, because a process never forgets its peak.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import command, ranks
from trainfleet.training.recipe.load import load_recipe

STRATEGIES: dict[str, tuple[str, ...]] = {
    "ddp": ("strategy=ddp",),
    "fsdp": ("strategy=fsdp", "sharding.meta_init=true"),
    "fsdp, recomputed": ("strategy=fsdp", "sharding.meta_init=true", "activation_checkpointing=full"),
    "hsdp": ("strategy=hsdp", "sharding.meta_init=true"),
}
SHAPE = (
    *(
        "workload.model.layers=12",
        "workload.model.width=576",
        "workload.model.heads=9",
        "workload.model.context=128",
    ),
    *("batch.global_batch=4", "batch.micro_batch=1", "steps=100"),
)


def measure(recipe: str, world_size: int, steps: int, changes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Measure each strategy on `world_size` ranks and return the document of `--json`. Memory is in MiB."""
    rows = {}
    for name, overrides in STRATEGIES.items():
        settings = {
            "recipe": recipe,
            "overrides": [*changes, "optimizer.warmup=1", f"scaling.workers={world_size}", *overrides],
            "steps": steps,
        }
        found = ranks.start(_rank, world_size, settings)
        rows[name] = {key: max(each[key] for each in found) for key in found[0]}
    return {
        **command.environment(),
        "recipe": " ".join((recipe, *changes)),
        "world_size": world_size,
        "rows": rows,
        "ratio": {name: round(row["kept"] / rows["ddp"]["kept"], 3) for name, row in rows.items()},
        "peak_ratio": {name: round(row["peak"] / rows["ddp"]["peak"], 3) for name, row in rows.items()},
    }


def _rank(rank: int, world_size: int, settings: dict[str, Any]) -> dict[str, Any]:
    from trainfleet.training.trainer.context import RunContext, default_cache
    from trainfleet.training.trainer.optimizer import make_optimizer
    from trainfleet.training.trainer.step import Stepper
    from trainfleet.training.trainer.strategies import make_strategy
    from trainfleet.training.workloads import make_workload

    recipe = load_recipe(settings["recipe"], settings["overrides"])
    workload = make_workload(recipe, default_cache())
    context = RunContext(Path("unused"), rank, world_size, rank, world_size)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak
    strategy = make_strategy(recipe, workload.build_model, context)
    optimizer = make_optimizer(recipe.optimizer, strategy.module)
    stepper = Stepper(recipe, context, workload, strategy)
    times, kept = [], 0
    for number in range(settings["steps"]):
        began = time.perf_counter()
        stepper.compute_gradients(
            [number * recipe.batch.global_batch + place for place in range(recipe.batch.global_batch)]
        )
        optimizer.step()
        times.append(time.perf_counter() - began)
        kept = _bytes(strategy.module, optimizer)
        optimizer.zero_grad(set_to_none=True)
    return {
        "parameters": strategy.parameters,
        "kept": kept / 2**20,
        "peak": (_status("VmHWM") - before) / 2**20,
        "step": statistics.median(times),
    }


def _bytes(module: Any, optimizer: Any) -> int:
    """Bytes of weights, gradients and optimizer that this rank holds."""
    from torch.distributed.tensor import DTensor

    tensors = [*module.parameters(), *(each.grad for each in module.parameters() if each.grad is not None)]
    tensors += [
        value for state in optimizer.state.values() for value in state.values() if hasattr(value, "nbytes")
    ]
    return sum(int((each.to_local() if isinstance(each, DTensor) else each).nbytes) for each in tensors)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    line = next(line for line in lines if line.startswith(name))
    return int(line.split()[1]) * 1024


def show(document: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md."""
    command.show_environment(document)
    parameters = document["rows"]["ddp"]["parameters"]
    print(f"{document['recipe']}, {parameters:,} parameters, {document['world_size']} ranks\n")
    print("| strategy | kept MiB | of ddp | peak MiB | of ddp | step s |\n|---|---|---|---|---|---|")
    for name, row in document["rows"].items():
        shares = f"{document['ratio'][name]:.3f} | {row['peak']:.0f} | {document['peak_ratio'][name]:.3f}"
        print(f"| {name} | {row['kept']:.0f} | {shares} | {row['step']:.3f} |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    return measure(name or "lm-tiny", 2, 2) if smoke else measure(name or "lm-small", 4, 4, SHAPE)


def main() -> int:
    """Measure and print; `lm-small` made larger by default, in a smoke run `lm-tiny`."""
    return command.run(__doc__, "recipe", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
