"""`--on torchrun`: the same loop on this machine without Ray, under torch's elastic agent. For a bare GPU
machine, for Slurm,
and as the honest measure of what Ray costs.

The agent forks its workers from a process that has imported torch and the loop and nothing more, so workers
that are started
again after a failure are at work within seconds. Easy to get wrong: that process must never compute, or its
forks hang.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path

from trainfleet import process
from trainfleet.training.launch.request import Target
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime import local_resources
from trainfleet.training.runtime.events import PARENT

PRELOADED = [
    "torch",
    "torch._dynamo",  # what an optimizer imports at its first step
    "torch._inductor.config",  # and what deterministic mode does
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "torch.utils.tensorboard",
    "trainfleet.training.workloads.lm.workload",
    "trainfleet.training.worker",
    "trainfleet.training.trainer.loop",
]
"""Imported before the first fork; whatever else a run needs its workers import themselves."""


def check(recipe: Recipe, target: Target) -> None:  # noqa: ARG001 - the siblings have the same arguments
    """Refuse what this machine cannot run.

    Raises:
        InputError: fewer CPUs or GPUs than the workers need.
    """
    local_resources.require(recipe.scaling)


def command(recipe: Recipe, file: Path, target: Target) -> list[str]:  # noqa: ARG001 - the siblings have the same arguments
    """The command that trains the recipe in `file`."""
    return [
        sys.executable,
        "-m",
        "trainfleet.training.launch.torchrun",
        str(recipe.scaling.workers),
        str(recipe.scaling.restarts),
        str(file),
    ]


def work(file: str) -> None:
    """What each worker does."""
    from trainfleet.training.run import main as run

    if code := run([file]):
        sys.exit(code)


def main() -> int:
    """torch's elastic agent, which dies with its launcher; the exit code. With options it is torchrun itself."""
    if PARENT in os.environ:
        process.die_with(int(os.environ[PARENT]))
    # Else restarted workers meet in the store of those before them, and wait for addresses at which nobody
    # listens any more (torch 2.15).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if sys.argv[1].startswith("-"):
        from torch.distributed.run import main as agent

        agent(sys.argv[1:])
        return 0
    import multiprocessing
    from multiprocessing import forkserver

    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()  # it imports while this process does

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # torch's own format imports the compiler to write down an error: 2 to 5 s of computing before the workers
    # are started again.
    for name in [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "torch"]:
        for handler in logging.getLogger(name).handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    workers, restarts, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    threading.Thread(target=_watch_forks, daemon=True).start()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        run_id=str(os.getpid()),
        max_restarts=restarts,
        start_method="forkserver",
        monitor_interval=0.1,
    )
    from trainfleet.training.launch.torchrun import (
        work as entry,
    )  # by its module's name, which `__main__` is not in the worker

    try:
        elastic_launch(config, entry)(file)
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _watch_forks() -> None:
    """End the agent when the process that it forks from is gone: nothing would tell it."""
    from multiprocessing import forkserver

    while True:
        time.sleep(1)
        pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if pid is not None and _ended(pid):
            sys.stderr.write("the process that workers are forked from is gone\n")
            os._exit(1)


def _ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not process.alive(pid)


if __name__ == "__main__":
    sys.exit(main())
