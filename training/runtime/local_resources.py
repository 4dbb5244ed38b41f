"""The CPUs and GPUs of this machine, for launchers that run on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.training.recipe.schema import ScalingConfig


def cpus() -> int:
    """CPUs that this process may use: its affinity, limited by a container's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, -(-int(quota) // int(period))))


def gpus() -> int:
    """NVIDIA GPUs that this process may see. Does not import torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip()])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def require(scaling: ScalingConfig, reserved: float = 0.0) -> None:
    """Reject more workers than this machine can run, each with `reserved` CPUs for processes that build its
    batches.

    Raises:
        InputError: fewer CPUs or GPUs than the workers need.
    """
    each = scaling.cpus_per_worker + reserved
    demands = [
        (
            "CPUs",
            float(cpus()),
            scaling.workers * each,
            f"scaling.workers={int(cpus() // each)}"
            if each <= cpus()
            else f"a smaller {'data_loading' if reserved else 'scaling'}.cpus_per_worker",
        )
    ]
    if scaling.use_gpu:
        demands.append(
            (
                "GPUs",
                float(gpus()),
                float(scaling.workers),
                f"scaling.workers={gpus()}" if gpus() else "scaling.use_gpu=false",
            )
        )
    problems = [
        Problem(
            "scaling.workers",
            f"{scaling.workers} workers need {need:g} {what}, this machine has {have:g}",
            f"such as {fix}",
        )
        for what, have, need, fix in demands
        if need > have
    ]
    if problems:
        raise InputError("this machine is too small for the recipe's workers", problems)


def describe() -> str:
    """This machine in one line: CPU model and count, memory, operating system."""
    import psutil

    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    memory = psutil.virtual_memory().total / 2**30
    gpu = f", {gpus()} GPU" if gpus() else ""
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{model}, {cpus()} CPUs{gpu}, {memory:.0f} GiB, {system}"
