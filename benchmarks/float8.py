"""Speed of training with `float8.scaling`, compared with a minimal loop in bf16.

    python -m benchmarks.float8 [--recipe lm-124m|lm-1b] [--smoke] [--json]

For each scaling, the step loop trains the recipe with float8, in turn with the minimal loop of
benchmarks/minimal_loop.py in bf16: in the same processes, on the same samples, compiled both. Their losses
must agree as those of two loops in bf16 do. Needs GPUs with matrix products in float8, and the packages of
benchmarks/gpu.py and torchao. A scaling that fails, or takes longer than LIMIT_S, is a row with its error.

Without a GPU, or with `--smoke`, it rounds to float8 and multiplies in bf16, in small, to check the
benchmark. A smoke run measures the first scaling only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks import command, loop
from benchmarks.gpu import CASES, SMALL_CASES, Case, Check
from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.runtime import local_resources

SCALINGS = ("tensorwise", "rowwise")
BLOCKS = 5
"""Of the steps of each loop. The first and the last are left out."""
LIMIT_S = 240.0
"""For one scaling of one recipe."""


def measure(recipe: str, smoke: bool) -> dict[str, Any]:
    """Measure one recipe, or all, and return the document of `--json`.

    Raises:
        InputError: there is no such recipe.
    """
    gpus, load = local_resources.gpus(), os.getloadavg()[0]
    small = smoke or not gpus
    cases = SMALL_CASES if small else CASES
    if recipe and recipe not in cases:
        raise InputError("no such recipe", [Problem("--recipe", recipe, f"one of {', '.join(cases)}")])
    chosen = {recipe: cases[recipe]} if recipe else cases
    return {
        **command.environment(("torch", "torchao")),
        "load_at_start": round(load, 2),
        "gpus": gpus,
        "check_only": small,
        "rows": [
            {"recipe": name, "scaling": scaling, **_compared(each, scaling, 0 if small else gpus)}
            for name, case in chosen.items()
            for each in (replace(case, blocks=min(case.blocks, BLOCKS)),)
            for scaling in (SCALINGS[:1] if smoke else SCALINGS)
        ],
    }


def _compared(case: Case, scaling: str, gpus: int) -> dict[str, Any]:
    """Tokens/s of both, and the ratio: its median, and those of single blocks. `error` if it failed."""
    print(f"{case.recipe}, {scaling}, at most {LIMIT_S:g} s", file=sys.stderr)
    check = Check(case.recipe, case, gpus, ends=0.0)
    emulated = () if gpus else ("float8.emulate=true",)
    try:
        found = loop.alternate(
            case.recipe,
            case.block * case.blocks,
            (*check.changes(), f"log.every={case.block}", f"float8.scaling={scaling}", *emulated),
            others=("minimal",),
            world_size=check.world_size,
            use_gpu=gpus > 0,
            block=case.block,
            backend=check.backend,
            timeout_s=LIMIT_S,
        )
    except TrainfleetError as error:
        return {"error": " ".join(str(error).split())[:300]}
    tokens, seconds = found["tokens_per_step"], found["step_seconds"]
    result = {
        "tokens_per_s": round(tokens / seconds["ours"]),
        "bf16_tokens_per_s": round(tokens / seconds["minimal"]),
        "speed": command.summary([1 / each for each in found["pairs"]["minimal"]], 4),
        "loss": found["loss"],
        "device": found["device"],
    }
    print(json.dumps(result), file=sys.stderr)
    return result


def show(document: Mapping[str, Any]) -> None:
    """Print the table of docs/benchmarks.md."""
    if document["check_only"]:
        print("CHECK OF THE BENCHMARK: a tiny model, float8 emulated. These are not figures of speed.\n")
    command.show_environment(dict(document))
    print(f"load {document['load_at_start']} at the start\n")
    print("| recipe | scaling | tokens/s | minimal loop in bf16 | speed / minimal loop (blocks) |")
    print("|---|---|---|---|---|")
    for row in document["rows"]:
        start = f"| {row['recipe']} | {row['scaling']} |"
        if "error" in row:
            print(f"{start} failed: {row['error']} | | |")
            continue
        speed = row["speed"]
        ratio = f"{speed['median']:.3f} ({speed['least']:.3f} to {speed['most']:.3f})"
        print(f"{start} {row['tokens_per_s']:,} | {row['bf16_tokens_per_s']:,} | {ratio} |")


def passed(document: Mapping[str, Any]) -> bool:
    """Whether no scaling failed."""
    return not any("error" in row for row in document["rows"])


def main() -> int:
    """Measure and print."""
    return command.run(__doc__, "recipe", measure, show, passed)


if __name__ == "__main__":
    sys.exit(main())
