"""Training on this machine's GPUs, with targets: `lm-124m` and `lm-1b` in bf16, compiled, within 20 minutes.

    python -m benchmarks.gpu [--recipe lm-124m|lm-1b] [--parts speed,train,resume] [--smoke] [--json]

For each recipe: tokens/s and MFU; the speed compared with a minimal loop and with a loop in torchtitan's
style, on the same samples in the same processes (benchmarks/loop.py); compiled graphs, waits for the device,
peak memory, the stall of a save, and a resume in new processes (benchmarks/gpu_parts.py). A part that fails
or reaches its time limit is a row with its name and its error; the limits add up to 20 minutes, and `--parts`
runs some of them in less. The exit code is 1 if a part fails or, on a GPU, if a target is missed.

Without a GPU, or with `--smoke`, everything runs in small, to check the benchmark. Needs torch and the
packages in PACKAGES, but not Ray. MFU = tokens/s x operations per token (6 per parameter, plus attention) /
bf16 peak of all GPUs.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "tokenizers": "tokenizers",
    "torchmetrics": "torchmetrics",
    "filelock": "filelock",
    "fsspec": "fsspec",
    "platformdirs": "platformdirs",
    "psutil": "psutil",
    "pydantic": "pydantic",
    "yaml": "pyyaml",
}
"""Distributions by the name of their module."""
TOTAL_S = 20 * 60
DATA_LIMIT_S = 120.0
PARTS = ("speed", "train", "resume")
"""What `--parts` takes. `resume` resumes the run of `train`."""
TARGETS = {
    "speed / minimal loop": (">=", 0.98),
    "graph breaks": ("<=", 0.0),
    "graphs compiled after the first log": ("<=", 0.0),
    "waits for the device per step": ("<=", 0.0),
    "stall of a save / plain copy of its bytes": ("<=", 2.0),
}
MFU_TARGETS = {("lm-1b", "H100"): (">=", 0.45)}
"""By recipe and part of the device's name."""


@dataclass(frozen=True)
class Case:
    """A recipe to measure: `changes` of it, steps in a row of each loop, how many such blocks, how many
    checkpoints, and the time limits of the parts in seconds.
    """

    recipe: str
    changes: tuple[str, ...] = ()
    block: int = 5
    blocks: int = 7
    saves: int = 5
    speed_s: float = 600.0
    train_s: float = 600.0
    resume_s: float = 300.0


CASES = {
    "lm-124m": Case("lm-124m", (), 10, 8, 5, 160.0, 100.0, 50.0),
    "lm-1b": Case("lm-1b", (), 5, 7, 3, 250.0, 370.0, 150.0),
}
SMALL = ("workload.model.layers=2", "precision=bf16", "compile=true", "deterministic=false")
SHARDED = ("strategy=fsdp", "sharding.meta_init=true", "activation_checkpointing=selective")
SMALL_CASES = {
    "lm-tiny like lm-124m": Case("lm-tiny", SMALL, 2, 4),
    "lm-tiny like lm-1b": Case("lm-tiny", (*SMALL, *SHARDED), 2, 4),
}


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        value: the figure; None if it is unknown, or a part failed.
        text: what is printed.
        target: a relation and a number, if there is a target.
        error: why there is no figure.
    """

    case: str
    what: str
    value: float | None
    text: str
    target: tuple[str, float] | None = None
    error: str | None = None

    @property
    def missed(self) -> bool:
        """Whether there is a figure that misses its target."""
        if self.value is None or self.target is None:
            return False
        relation, limit = self.target
        return self.value < limit if relation == ">=" else self.value > limit


@dataclass
class Check:
    """The parts of one case, each of which becomes rows."""

    name: str
    case: Case
    gpus: int
    ends: float
    parts: Sequence[str] = PARTS

    @property
    def world_size(self) -> int:
        return max(1, self.gpus)

    def rows(self) -> list[Row]:
        """Run all parts."""
        with tempfile.TemporaryDirectory(prefix="trainfleet-gpu-") as folder:
            rows: list[Row] = []
            if "speed" in self.parts:
                rows += self.part("speed", self.speed, self.case.speed_s)
            if "train" not in self.parts:
                return rows
            rows += self.part("a run with saves", lambda limit: self.train(folder, limit), self.case.train_s)
            if "resume" not in self.parts:
                return rows
            if rows[-1].error:
                return [*rows, failed(self.name, "resume", "not started: there is no run to resume")]
            return rows + self.part("resume", lambda limit: self.resume(folder, limit), self.case.resume_s)

    def part(self, what: str, run: Callable[[float], list[Row]], limit_s: float) -> list[Row]:
        """The rows of a part; one row with the error if it fails or exceeds its time."""
        limit = min(limit_s, self.ends - time.monotonic())
        print(f"{self.name}: {what}, at most {limit:.0f} s", file=sys.stderr)
        if limit <= 0:
            return [failed(self.name, what, f"not started: the {TOTAL_S // 60} minutes are used up")]
        try:
            return run(limit)
        except Exception as error:  # noqa: BLE001 - the other parts are measured all the same
            return [failed(self.name, what, str(error) or type(error).__name__)]

    def changes(self, accumulation: int | None = None) -> tuple[str, ...]:
        """The recipe's changes, with its own micro batch, and a global batch for this machine's ranks."""
        from trainfleet.training.recipe.load import load_recipe

        recipe = load_recipe(self.case.recipe, self.case.changes)
        turns = accumulation or recipe.batch.accumulation(recipe.scaling.workers)
        return (
            *self.case.changes,
            f"batch.global_batch={turns * recipe.batch.micro_batch * self.world_size}",
        )

    def settings(self, folder: str) -> dict[str, Any]:
        from benchmarks import gpu_parts

        changes = self.changes(accumulation=2)
        return {
            "recipe": self.case.recipe,
            "overrides": gpu_parts.overrides(self.world_size, self.gpus > 0, self.case.saves, changes),
            "stop_at": self.stop_at,
            "folder": folder,
            "use_gpu": self.gpus > 0,
            "backend": self.backend,
        }

    @property
    def stop_at(self) -> int:
        """The step at which the run with saves stops."""
        from benchmarks import gpu_parts

        return gpu_parts.SAVE_EVERY * self.case.saves

    @property
    def backend(self) -> str:
        """Without a GPU, graphs are found, but no code is generated."""
        return "inductor" if self.gpus else "aot_eager"

    def speed(self, limit_s: float) -> list[Row]:
        """The three loops in turn."""
        from benchmarks import loop

        case = self.case
        found = loop.alternate(
            case.recipe,
            case.block * case.blocks,
            (*self.changes(), f"log.every={case.block}"),
            others=("minimal", "torchtitan"),
            world_size=self.world_size,
            use_gpu=self.gpus > 0,
            block=case.block,
            backend=self.backend,
            timeout_s=limit_s,
        )
        return speed_rows(self.name, found)

    def train(self, folder: str, limit_s: float) -> list[Row]:
        """Graphs, waits, memory and saves."""
        from benchmarks import gpu_parts, ranks

        found = ranks.start(gpu_parts.train_and_stop, self.world_size, self.settings(folder), limit_s)
        return run_rows(self.name, found, on_gpu=self.gpus > 0)

    def resume(self, folder: str, limit_s: float) -> list[Row]:
        """The run of `train`, resumed in new processes."""
        from benchmarks import gpu_parts, ranks

        began = time.time()
        found = ranks.start(gpu_parts.resume, self.world_size, self.settings(folder), limit_s)
        seconds = max(each["first_step_at"] for each in found) - began
        what = f"start of processes to the first step after a resume (step {self.stop_at}), s"
        return [Row(self.name, what, round(seconds, 2), f"{seconds:.1f}")]


def failed(case: str, what: str, error: str) -> Row:
    """The row of a part without figures."""
    short = " ".join(error.split())
    return Row(case, what, None, "failed", error=short if len(short) <= 300 else f"{short[:297]}...")


def speed_rows(case: str, found: Mapping[str, Any]) -> list[Row]:
    """Of what `loop.alternate` returns. A ratio above 1 means that the step loop is faster."""
    from benchmarks.loop import NAMES

    rate = found["tokens_per_step"] / found["step_seconds"]["ours"]
    rows = [Row(case, "tokens/s", round(rate), f"{rate:,.0f}")]
    peak = found["peak_flops"]
    mfu = rate * found["flops_per_token"] / peak if peak else None
    targets = (each for (name, part), each in MFU_TARGETS.items() if name == case and part in found["device"])
    if mfu is None:
        rows.append(Row(case, "MFU", None, "peak unknown"))
    else:
        rows.append(Row(case, "MFU", round(mfu, 4), f"{mfu:.1%}", next(targets, None)))
    for name, ratio in found["ratio"].items():
        pairs = [1 / each for each in found["pairs"][name]]
        text = f"{1 / ratio:.3f} (blocks: {min(pairs):.3f} to {max(pairs):.3f}, {len(pairs)})"
        what = f"speed / {NAMES[name]}"
        rows.append(Row(case, what, round(1 / ratio, 4), text, TARGETS.get(what)))
    return rows


def run_rows(case: str, found: list[dict[str, Any]], on_gpu: bool) -> list[Row]:
    """Of what `gpu_parts.train_and_stop` returns on each rank."""
    from benchmarks.gpu_parts import median_stall

    first, graphs = found[0], found[0]["graphs"]

    def row(what: str, value: float | None, text: str) -> Row:
        return Row(case, what, value, text, TARGETS.get(what))

    rows = [row("parameters", first["parameters"], f"{first['parameters']:,}")]
    if graphs["first"] == 0:
        rows.append(failed(case, "compiled graphs", "compile=true has compiled nothing"))
    else:
        rows.append(row("compiled graphs", graphs["first"], str(graphs["first"])))
    reasons = f" ({'; '.join(first['reasons'])})" if first["reasons"] else ""
    rows.append(row("graph breaks", graphs["breaks"], f"{graphs['breaks']}{reasons}"))
    later = graphs["all"] - graphs["first"]
    rows.append(row("graphs compiled after the first log", later, str(later)))
    waits = first["waits"]
    if waits is None:
        rows.append(failed(case, "waits for the device per step", "the run has written no profile"))
    else:
        names = ", ".join(f"{name} {count:g}" for name, count in waits.items())
        total = sum(waits.values())
        text = f"{total:g}{f' ({names})' if names else ''}" if on_gpu else "0 (no GPU to wait for)"
        rows.append(row("waits for the device per step", total, text))
    memory = max(each["peak_bytes"] for each in found) / 2**30
    what = "peak memory of a GPU, GiB" if on_gpu else "peak resident memory, GiB"
    rows.append(row(what, round(memory, 2), f"{memory:.2f}"))
    stall, copy = median_stall(first["stalls"]), max(each["copy_seconds"] for each in found)
    text = f"{stall:.3f} (the first: {first['stalls'][0]:.3f})"
    rows.append(row("stall of a save, s", round(stall, 4), text))
    what = "stall of a save / plain copy of its bytes"
    rows.append(row(what, round(stall / copy, 3), f"{stall / copy:.2f}"))
    return rows


def measure(recipe: str, smoke: bool, parts: str = "") -> dict[str, Any]:
    """Measure one case, or all, and return the document of `--json`.

    Raises:
        InputError: there is no such case or part.
    """
    from benchmarks import command, ranks
    from trainfleet.errors import InputError, Problem, TrainfleetError
    from trainfleet.training.runtime import local_resources

    gpus, load, began = local_resources.gpus(), os.getloadavg()[0], time.monotonic()
    small = smoke or not gpus
    cases = SMALL_CASES if small else CASES
    if recipe and recipe not in cases:
        raise InputError("no such recipe", [Problem("--recipe", recipe, f"one of {', '.join(cases)}")])
    chosen = {recipe: cases[recipe]} if recipe else cases
    names = tuple(parts.split(",")) if parts else PARTS
    if unknown := [each for each in names if each not in PARTS]:
        raise InputError(
            "no such part", [Problem("--parts", ", ".join(unknown), f"some of {','.join(PARTS)}")]
        )
    if "resume" in names and "train" not in names:
        raise InputError("nothing to resume", [Problem("--parts", parts, "train,resume")])
    rows = []
    try:
        settings = {"recipes": [(each.recipe, list(each.changes)) for each in chosen.values()]}
        ranks.start(_prepare, 1, settings, DATA_LIMIT_S)
    except TrainfleetError as error:
        rows.append(failed("data", "preparing it", str(error)))
    for name, case in chosen.items():
        rows += Check(name, case, gpus, began + TOTAL_S, names).rows()
    compared = not small
    return {
        **command.environment(("torch",)),
        "load_at_start": round(load, 2),
        "gpus": gpus,
        "check_only": small,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "rows": [asdict(each) | {"missed": each.missed and compared} for each in rows],
        "missed": [f"{each.case}: {each.what} is {each.text}" for each in rows if each.missed and compared],
        "failed": [f"{each.case}: {each.what}: {each.error}" for each in rows if each.error],
    }


def _prepare(_rank: int, _world_size: int, settings: dict[str, Any]) -> None:
    """Prepare the data of all recipes, so that no other part pays for it."""
    from trainfleet.training.recipe.load import load_recipe
    from trainfleet.training.trainer.context import default_cache
    from trainfleet.training.workloads import make_workload

    for recipe, changes in settings["recipes"]:
        make_workload(load_recipe(recipe, changes), default_cache())


def show(document: dict[str, Any]) -> None:
    """Print the table, and the targets that were missed."""
    from benchmarks import command

    if document["check_only"]:
        why = "without a GPU" if not document["gpus"] else "--smoke"
        print(f"CHECK OF THE BENCHMARK, {why}: a tiny model. These are not figures of training speed.\n")
    command.show_environment(document)
    print(f"load {document['load_at_start']} at the start; took {document['minutes']} minutes\n")
    print("| recipe | what | figure | target |\n|---|---|---|---|")
    for row in document["rows"]:
        target = (
            "" if document["check_only"] or not row["target"] else f"{row['target'][0]} {row['target'][1]:g}"
        )
        text = f"{row['text']}: {row['error']}" if row["error"] else row["text"]
        print(f"| {row['case']} | {row['what']} | {text} | {target}{': missed' if row['missed'] else ''} |")
    if document["check_only"]:
        print("\nNo target was compared.")
    else:
        print("\nMissed targets:" if document["missed"] else "\nNo target was missed.")
    for text in document["missed"]:
        print(f"- {text}")
    if document["failed"]:
        print("\nParts that failed:")
    for text in document["failed"]:
        print(f"- {text}")


def passed(document: dict[str, Any]) -> bool:
    """Whether no part failed and no target was missed."""
    return not document["failed"] and not document["missed"]


def main() -> int:
    """Measure and print."""
    if missing := [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]:
        print(f"error: not installed: {', '.join(missing)}", file=sys.stderr)
        print(f"  pip install {' '.join(missing)}", file=sys.stderr)
        return 3
    from benchmarks import command

    def add_options(parser: argparse.ArgumentParser) -> None:
        help_text = f"the parts to run, of {','.join(PARTS)} (default: all)"
        parser.add_argument("--parts", default="", help=help_text)

    return command.run(__doc__, "recipe", measure, show, passed, add_options=add_options)


if __name__ == "__main__":
    sys.exit(main())
