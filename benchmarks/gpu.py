"""Speed of GPT training on GPUs: tokens/s, MFU and peak memory at 124 million and 1 billion parameters.

    python -m benchmarks.gpu [--recipe lm-124m|lm-1b] [--smoke] [--json]

Uses all GPUs of this machine, with bf16 and torch.compile. The step loop and a minimal DDP loop alternate by
step (benchmarks/loop.py); a second run of the step loop alone gives the peak memory. MFU = tokens/s x
operations per token (6 per parameter, plus attention) / bf16 peak of all GPUs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import command, loop, ranks
from trainfleet.errors import MissingToolError, Problem
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.runtime import local_resources

TARGET = 0.98
RECIPES = {
    "lm-124m": ("batch.global_batch={batch}", "batch.micro_batch=32"),
    "lm-1b": ("batch.global_batch={batch}", "batch.micro_batch=8"),
}
STEPS = 40


def measure(recipe: str, smoke: bool) -> dict[str, Any]:
    """Measure one recipe, or each of RECIPES, and return the document of `--json`.

    Raises:
        MissingToolError: this machine has no GPU.
    """
    count = local_resources.gpus()
    if not count:
        raise MissingToolError(
            "this benchmark needs a GPU",
            [Problem("", "none is visible", "run it on a GPU machine; `make bench` does not include it")],
        )
    rows = {name: _row(name, count, 10 if smoke else STEPS) for name in ([recipe] if recipe else RECIPES)}
    return {"machine": local_resources.describe(), "gpus": count, "rows": rows, "target": TARGET}


def _row(recipe: str, count: int, steps: int) -> dict[str, Any]:
    from trainfleet.training.trainer.metrics import PEAK_FLOPS

    micro = {"lm-124m": 32, "lm-1b": 8}.get(recipe, 8)
    batch = [each.format(batch=4 * micro * count) for each in RECIPES.get(recipe, ())]
    changes = (*batch, "precision=bf16", "compile=true", "deterministic=false", "log.every=10")
    document = loop.measure(recipe, steps + loop.WARM_UP, changes, world_size=count, use_gpu=True)
    with tempfile.TemporaryDirectory(prefix="trainfleet-gpu-") as folder:
        overrides = [
            *loop.OVERRIDES,
            f"steps={loop.WARM_UP + 5}",
            "optimizer.warmup=1",
            f"scaling.workers={count}",
            "scaling.use_gpu=true",
            *changes,
        ]
        settings = {"recipe": recipe, "overrides": overrides, "folder": folder, "use_gpu": True}
        alone = ranks.start(_alone, count, settings)
    rate = document["tokens_per_step"] / document["step_seconds"]["ours"]
    peak = next((value for part, value in PEAK_FLOPS.items() if part in alone[0]["gpu"]), None)
    return {
        "gpu": alone[0]["gpu"],
        "parameters": alone[0]["parameters"],
        "tokens_per_second": round(rate),
        "mfu": round(rate * document["flops_per_token"] / (peak * count), 4) if peak else None,
        "speed_of_bare_loop": round(document["step_seconds"]["bare"] / document["step_seconds"]["ours"], 4),
        "peak_memory_gib": round(max(each["peak"] for each in alone) / 2**30, 2),
        "step_seconds": document["step_seconds"],
    }


def _alone(rank: int, world_size: int, settings: dict[str, Any]) -> dict[str, Any]:
    import torch

    from trainfleet.training.trainer.context import RunContext, default_cache
    from trainfleet.training.trainer.loop import train
    from trainfleet.training.workloads import make_workload

    recipe = load_recipe(settings["recipe"], settings["overrides"])
    torch.cuda.reset_peak_memory_stats()
    folder = Path(settings["folder"])
    train(recipe, RunContext(folder, rank, world_size, rank, world_size, device=f"cuda:{rank}"))
    with torch.device("meta"):
        model = make_workload(recipe, default_cache()).build_model()
        parameters = sum(each.numel() for each in model.parameters())
    return {
        "peak": torch.cuda.max_memory_allocated(),
        "gpu": torch.cuda.get_device_name(),
        "parameters": parameters,
    }


def show(document: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md."""
    print(f"{document['machine']}\n")
    print("| recipe | parameters | tokens/s | MFU | speed / minimal DDP | peak GiB per GPU | target |")
    print("|---|---|---|---|---|---|---|")
    for name, row in document["rows"].items():
        mfu = f"{row['mfu']:.1%}" if row["mfu"] is not None else "peak unknown"
        ratio, peak = row["speed_of_bare_loop"], row["peak_memory_gib"]
        figures = f"{row['tokens_per_second']:,} | {mfu} | {ratio:.4f} | {peak}"
        print(f"| {name} | {row['parameters']:,} | {figures} | >= {document['target']} |")


def main() -> int:
    """Measure and print."""
    return command.run(__doc__, "recipe", measure, show)


if __name__ == "__main__":
    sys.exit(main())
