"""Overhead of the step loop: its steps compared with those of other loops around the same model.

    python -m benchmarks.loop [--smoke] [--json]

The others are a minimal hand-written loop (benchmarks/minimal_loop.py), and Lightning Fabric and a loop with
nanoGPT's structure (benchmarks/external_loops.py). All run in the same processes, on the same samples, at the
recipe's own batch. Each step of the run is followed by one of each other loop, so that other load on the
machine slows all. A step of the run includes data, gradient, guards, metrics, logging and the check for stop
requests. The losses must agree, or the loops do not do the same work.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import command, ranks
from trainfleet.errors import TrainfleetError
from trainfleet.training.recipe.load import load_recipe

if TYPE_CHECKING:
    from benchmarks.minimal_loop import Yardstick

TARGET = 1.02
NAMES = {
    "ours": "step loop",
    "minimal": "minimal loop",
    "torchtitan": "torchtitan-style loop",
    "fabric": "Lightning Fabric",
    "nanogpt": "nanoGPT-style loop",
}
ON_CPUS = ("minimal", "fabric", "nanogpt")
WARM_UP = 5
"""Steps of each, or blocks of steps, that are left out."""
LOSS_TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}
"""Relative, after all steps: other orders of sums differ in the last bits, and training amplifies that."""
OVERRIDES = (
    "validation.every=100000",
    "checkpoint.every=100000",
    "checkpoint.metric=validation/loss",
    "validation.samples=8",
    "log.tensorboard=false",
)


def measure(
    recipe: str,
    steps: int,
    changes: tuple[str, ...] = (),
    *,
    others: Sequence[str] = ON_CPUS,
    world_size: int = 2,
    rounds: int = 1,
) -> dict[str, Any]:
    """Measure and return the document that `--json` prints. Times are in seconds.

    Args:
        recipe: its name.
        steps: of each loop in a round.
        changes: overrides of the recipe.
        others: names in NAMES. Those whose package is not installed are named in `not_measured`.
        world_size: number of ranks.
        rounds: how often to repeat; the ratios are summaries over them.
    """
    missing = [each for each in others if each == "fabric" and not _installed("lightning_fabric")]
    others, load = [each for each in others if each not in missing], os.getloadavg()[0]
    found = []
    for number in range(rounds):
        print(f"round {number + 1}/{rounds}", file=sys.stderr)
        found.append(alternate(recipe, steps, changes, others=others, world_size=world_size))
    return {
        **command.environment(("torch",)),
        "load_at_start": round(load, 2),
        "recipe": " ".join((recipe, *changes)),
        "world_size": world_size,
        "rounds": rounds,
        "steps": found[0]["steps"],
        "step_seconds": {
            name: command.summary([each["step_seconds"][name] for each in found], 4)
            for name in ("ours", *others)
        },
        "ratio": {name: command.summary([each["ratio"][name] for each in found], 4) for name in others},
        "not_measured": dict.fromkeys(missing, "not installed"),
        "target": TARGET,
    }


def alternate(
    recipe: str,
    steps: int,
    changes: tuple[str, ...] = (),
    *,
    others: Sequence[str],
    world_size: int,
    use_gpu: bool = False,
    block: int = 1,
    backend: str = "inductor",
    timeout_s: float = ranks.TIMEOUT_S,
) -> dict[str, Any]:
    """Run `steps` steps of the run and of each of `others`, in turn by `block` steps.

    Within a block nothing waits for a GPU, which may therefore be as far behind as in a run by itself.

    Args:
        recipe: its name.
        steps: of each loop.
        changes: overrides of the recipe.
        others: names in NAMES.
        world_size: number of ranks.
        use_gpu: one GPU per rank.
        block: steps of one loop before the next one's turn.
        backend: of torch.compile.
        timeout_s: for all steps.

    Returns:
        Median seconds of a step of each; the ratio of ours to each of the others, of those medians; the
        ratios of all pairs of blocks; and tokens and operations of a step.

    Raises:
        TrainfleetError: a rank failed or was too slow, or the losses differ.
    """
    scaling = (f"scaling.workers={world_size}", f"scaling.use_gpu={str(use_gpu).lower()}")
    overrides = [*OVERRIDES, f"steps={steps}", "optimizer.warmup=1", *scaling, *changes]
    with tempfile.TemporaryDirectory(prefix="trainfleet-loop-") as folder:
        settings = {"recipe": recipe, "overrides": overrides, "folder": folder, "use_gpu": use_gpu}
        settings |= {"others": list(others), "block": block, "backend": backend}
        found = ranks.start(_interleaved, world_size, settings, timeout_s)
    precision = load_recipe(recipe, overrides).precision
    check_losses(found[0]["loss"], LOSS_TOLERANCE[precision])
    medians = {
        name: statistics.median([step for each in found for step in each["times"][name]])
        for name in ("ours", *others)
    }
    return {
        "steps": block * len(found[0]["times"]["ours"]),
        "step_seconds": medians,
        "ratio": {name: medians["ours"] / medians[name] for name in others},
        "pairs": _pairs([each["times"] for each in found], others),
        "loss": found[0]["loss"],
        "tokens_per_step": found[0]["tokens"],
        "flops_per_token": found[0]["flops"],
        "device": found[0]["device"],
        "peak_flops": found[0]["peak_flops"],
    }


def _pairs(times: Sequence[Mapping[str, list[float]]], others: Sequence[str]) -> dict[str, list[float]]:
    """The ratio of each block of ours to the next block of each of the others, over all ranks."""
    return {
        name: [one / other for each in times for one, other in zip(each["ours"], each[name], strict=True)]
        for name in others
    }


def check_losses(losses: Mapping[str, float], tolerance: float) -> None:
    """Require that all loops trained alike.

    Raises:
        TrainfleetError: a loss differs from the run's by more than the relative `tolerance`.
    """
    for name, loss in losses.items():
        if not abs(loss - losses["ours"]) <= tolerance * abs(losses["ours"]):
            what = f"its loss is {loss:.5f}, the step loop's {losses['ours']:.5f}"
            raise TrainfleetError(f"the {NAMES[name]} does other work: {what}")


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def make_loop(name: str, *arguments: Any) -> Yardstick:
    """The loop of that name in NAMES, on this rank."""
    from benchmarks import minimal_loop

    if name == "minimal":
        return minimal_loop.MinimalLoop(*arguments)
    if name == "torchtitan":
        return minimal_loop.TorchtitanLoop(*arguments)
    from benchmarks import external_loops  # imports Fabric only for its own loop

    if name == "fabric":
        return external_loops.FabricLoop(*arguments)
    return external_loops.NanoGptLoop(*arguments)


def _synchronized(device: str) -> float:
    """Wait for all ranks and their devices; returns the time. Without it, loops would pay for one another."""
    import torch
    import torch.distributed as dist

    if device.startswith("cuda"):
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()
    return time.perf_counter()


def _interleaved(rank: int, world_size: int, settings: dict[str, Any]) -> dict[str, Any]:
    import torch

    from trainfleet.training.runtime.process_group import single_process_group
    from trainfleet.training.trainer.context import RunContext, default_cache
    from trainfleet.training.trainer.loop import train
    from trainfleet.training.trainer.metrics import peak_flops
    from trainfleet.training.trainer.strategies import wrap

    wrap.BACKEND = settings["backend"]
    recipe = load_recipe(settings["recipe"], settings["overrides"])
    device = f"cuda:{rank}" if settings["use_gpu"] else "cpu"
    times: dict[str, list[float]] = {name: [] for name in ("ours", *settings["others"])}
    logged: list[tuple[int, float]] = []
    resumed = 0.0
    steps = 0

    def between_steps() -> bool:  # the step loop calls it once per step on every rank
        nonlocal resumed, steps
        steps += 1
        if (steps - 1) % settings["block"]:
            return False
        now = _synchronized(device)
        if resumed:
            times["ours"].append((now - resumed) / settings["block"])
        resumed = now
        for name, loop in loops.items():
            for _ in range(settings["block"]):
                loop.step()
            now, before = _synchronized(device), resumed
            times[name].append((now - before) / settings["block"])
            resumed = now
        return False

    alone = single_process_group() if recipe.strategy != "ddp" else nullcontext()
    with alone:
        where = (recipe, default_cache(), rank, world_size, device)
        loops = {name: make_loop(name, *where) for name in settings["others"]}
        context = RunContext(
            *(Path(settings["folder"]), rank, world_size, rank, world_size),
            device=device,
            should_stop=between_steps,
            on_interval=lambda row: logged.append((row["step"], row["loss"])),
        )
        train(recipe, context)
        losses = {name: _mean_loss(loop, recipe.log.every, world_size) for name, loop in loops.items()}
    ours = {"ours": next(loss for step, loss in logged if step == recipe.log.every)} if logged else {}
    warm = 1 if settings["block"] > 1 else WARM_UP
    any_loop = next(iter(loops.values()))
    return {
        "times": {name: values[warm : len(times["ours"])] for name, values in times.items()},
        "loss": {**ours, **losses},
        "tokens": recipe.batch.global_batch * any_loop.workload.sample_tokens,
        "flops": any_loop.workload.flops_per_token,
        "device": torch.cuda.get_device_name() if settings["use_gpu"] else "CPU",
        "peak_flops": peak_flops(device, world_size, recipe.precision),
    }


def _mean_loss(loop: Yardstick, steps: int, world_size: int) -> float:
    """The mean over the first `steps` steps and all ranks, as the step loop logs it. Collective."""
    import torch
    import torch.distributed as dist

    mean = torch.stack(loop.losses[:steps]).mean()
    if dist.is_initialized():
        dist.all_reduce(mean)
    return float(mean) / world_size


def show(document: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md."""
    command.show_environment(document)
    print(f"load {document['load_at_start']} at the start")
    rounds = f"{document['rounds']} rounds of {document['steps']} steps of each, in turn"
    print(f"{document['recipe']}, {document['world_size']} workers, {rounds}\n")
    print("| what | median | min | max | target |\n|---|---|---|---|---|")
    for name, row in document["step_seconds"].items():
        cells = " | ".join(f"{row[key]:.4f}" for key in ("median", "least", "most"))
        print(f"| median step, {NAMES[name]}, s | {cells} | |")
    for name, row in document["ratio"].items():
        cells = " | ".join(f"{row[key]:.4f}" for key in ("median", "least", "most"))
        target = f"<= {document['target']}" if name == "minimal" else ""
        print(f"| step loop / {NAMES[name]} | {cells} | {target} |")
    for name, why in document["not_measured"].items():
        print(f"| step loop / {NAMES[name]} | {why} | | | |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    return measure(name or "lm-tiny", 12) if smoke else measure(name or "lm-small", 105, rounds=5)


def main() -> int:
    """Measure and print; `lm-small` by default, in a smoke run `lm-tiny`."""
    return command.run(__doc__, "recipe", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
