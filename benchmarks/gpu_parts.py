"""The parts of `benchmarks.gpu` that train with the step loop alone: graphs, waits for the device, memory,
saves, and a resume.

Each runs on ranks (benchmarks/ranks.py) and returns plain values of its rank.
"""

from __future__ import annotations

import gzip
import json
import re
import resource
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainfleet.errors import TrainfleetError
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe

SAVE_EVERY = 5
RESUMED_STEPS = 2
PROFILED = (3, 4)
"""Steps that are recorded: compiled, not logged, and before the first save."""
WAIT_S = 120.0
"""For the write of one checkpoint."""
WRITERS = ("checkpoint", "checkpoint-removal")
"""The names of the threads that write a checkpoint, and remove older ones."""
BLOCKING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cuStreamSynchronize", "cuCtxSynchronize")
"""Calls that wait until the device has finished what is queued. `cudaEventSynchronize` is not one: the loop
waits with it for the values of an earlier step.
"""
PAGEABLE = re.compile(r"Memcpy .*Pageable")
"""Copies from or to memory that is not pinned, for which the host waits."""


def overrides(world_size: int, use_gpu: bool, saves: int, changes: Iterable[str]) -> list[str]:
    """Changes of the recipe for a run that saves `saves` times, is stopped, and is resumed."""
    return [
        "validation.every=100000",
        "validation.samples=8",
        f"checkpoint.every={SAVE_EVERY}",
        "checkpoint.keep_last=1",
        "checkpoint.keep_best=false",
        "log.tensorboard=false",
        f"log.every={SAVE_EVERY}",
        f"steps={SAVE_EVERY * saves + RESUMED_STEPS}",
        "optimizer.warmup=1",
        f"profile.steps={PROFILED[0]}-{PROFILED[1]}",
        f"scaling.workers={world_size}",
        f"scaling.use_gpu={str(use_gpu).lower()}",
        *changes,
    ]


def train_and_stop(rank: int, world_size: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Train to step `stop_at`, and save and end there.

    Returns:
        graphs: unique graphs after the first logged step, which also computes metrics, and at the end, and
            graph breaks.
        reasons: of graph breaks.
        waits: by call, per recorded step, on rank 0.
        peak_bytes: of the device's memory in training steps (on a CPU, of the process).
        stalls: seconds for which each save but the last has held up the loop.
        copy_seconds: of a plain copy to pinned memory of the bytes that this rank saves.
    """
    from trainfleet.training.trainer.loop import train

    recipe = load_recipe(settings["recipe"], settings["overrides"])
    context, folder = _context(rank, world_size, settings), Path(settings["folder"])
    stop_at: int = settings["stop_at"]
    graphs: dict[int, tuple[int, int]] = {}
    stalls: list[float] = []
    peak = 0
    steps = 0

    def on_step(step: int, _steps: int) -> None:
        nonlocal steps, peak
        steps = step
        graphs[step] = _graph_counts()
        if step < SAVE_EVERY:
            peak = _peak_bytes(context.device)

    def should_stop() -> bool:
        """Before a save, wait until the previous one is written and its predecessor removed: a run saves far
        less often.
        """
        if steps and (steps + 1) % SAVE_EVERY == 0:
            ends = time.monotonic() + WAIT_S
            while _writing():
                if time.monotonic() > ends:
                    raise TrainfleetError(f"a checkpoint was not written within {WAIT_S:g} s")
                time.sleep(0.05)
        return steps + 1 >= stop_at

    context.on_step, context.should_stop = on_step, should_stop
    context.on_interval = lambda row: stalls.append(row["checkpoint_seconds"])
    result = train(recipe, context)
    if result.status != "stopped" or result.step != stop_at:
        raise TrainfleetError(f"the run is {result.status} at step {result.step}, not stopped at {stop_at}")
    parameters = _parameters(recipe)
    recorded = list(folder.glob(f"profile/rank-{rank}-*.trace.json.gz"))
    return {
        "parameters": parameters,
        "graphs": {"first": graphs[SAVE_EVERY][0], "all": graphs[stop_at][0], "breaks": graphs[stop_at][1]},
        "reasons": _break_reasons(),
        "waits": read_waits(recorded[0]) if recorded else None,
        "peak_bytes": peak,
        "stalls": stalls[1:],  # the first interval has no save
        "copy_seconds": _copy_seconds(parameters * 12 // world_size, context.device),
    }


def _parameters(recipe: Recipe) -> int:
    import torch

    from trainfleet.training.trainer.context import default_cache
    from trainfleet.training.workloads import make_workload

    with torch.device("meta"):
        model = make_workload(recipe, default_cache()).build_model()
    return sum(each.numel() for each in model.parameters())


def _writing() -> bool:
    """Whether this process still writes a checkpoint, or removes older ones."""
    return any(each.name in WRITERS for each in threading.enumerate())


def resume(rank: int, world_size: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Resume the run of `train_and_stop` and finish it.

    Returns:
        first_step_at: the time (`time.time()`) at which the first step was done.
        step: the last step.

    Raises:
        TrainfleetError: the run did not resume from step `stop_at`.
    """
    from trainfleet.training.trainer.loop import train

    recipe = load_recipe(settings["recipe"], settings["overrides"])
    context, stop_at = _context(rank, world_size, settings), settings["stop_at"]
    done: dict[int, float] = {}
    context.on_step = lambda step, _steps: done.setdefault(step, time.time())
    result = train(recipe, context)
    if result.resumed_from != stop_at or min(done) != stop_at + 1:
        raise TrainfleetError(f"the run resumed from step {result.resumed_from}, not from {stop_at}")
    return {"first_step_at": done[stop_at + 1], "step": result.step}


def _context(rank: int, world_size: int, settings: Mapping[str, Any]) -> Any:
    from trainfleet.training.trainer.context import RunContext
    from trainfleet.training.trainer.strategies import wrap

    wrap.BACKEND = settings["backend"]
    device = f"cuda:{rank}" if settings["use_gpu"] else "cpu"
    return RunContext(Path(settings["folder"]), rank, world_size, rank, world_size, device=device)


def _graph_counts() -> tuple[int, int]:
    """Unique graphs and graph breaks of this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


def _break_reasons() -> list[str]:
    from torch._dynamo.utils import counters

    return [" ".join(str(why).split())[:100] for why, _ in counters["graph_break"].most_common(3)]


def _peak_bytes(device: str) -> int:
    import torch

    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _copy_seconds(size: int, device: str) -> float:
    """Seconds of a copy of `size` bytes to memory on the host, in pieces of at most 1 GiB: the best of 3."""
    import torch

    on_gpu = device.startswith("cuda")
    piece = min(size, 1 << 30)
    source = torch.zeros(piece, dtype=torch.uint8, device=device)
    target = torch.zeros(piece, dtype=torch.uint8, pin_memory=on_gpu)
    seconds = []
    for _ in range(3):
        if on_gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(0, size, piece):
            target.copy_(source, non_blocking=True)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def read_waits(trace: Path) -> dict[str, float]:
    """How often each recorded step waits for the device, by call, from a trace of torch's profiler.

    Raises:
        TrainfleetError: the trace has no step.
    """
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events: Sequence[Mapping[str, Any]] = json.load(file)["traceEvents"]
    steps = [
        (each["ts"], each["ts"] + each["dur"])
        for each in events
        if each.get("cat") == "user_annotation" and re.fullmatch(r"step \d+", str(each.get("name")))
    ]
    if not steps:
        raise TrainfleetError(f"{trace.name} has no step")
    found: Counter[str] = Counter()
    for each in events:
        name = str(each.get("name"))
        if name in BLOCKING:  # the profiler itself waits outside of the steps
            found[name] += any(begin <= each["ts"] <= end for begin, end in steps)
        elif PAGEABLE.search(name):  # on the device's time line, which may be behind the step
            found[name] += 1
    return {name: count / len(steps) for name, count in sorted(found.items()) if count}


def median_stall(stalls: Sequence[float]) -> float:
    """Of the saves after the first, which allocates the buffers."""
    return statistics.median(stalls[1:])
