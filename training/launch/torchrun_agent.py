"""torch's elastic agent, as a process that ends with its launcher. Arguments: WORKERS RESTARTS CHECKPOINTS
FILE.

The agent forks its workers from a process that has imported torch and the loop and nothing more, so restarted
workers are ready within seconds.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time

from trainfleet import process
from trainfleet.training.runtime.events import EVENTS, PARENT, EventSink
from trainfleet.training.runtime.restarts import Progress, RestartBudget, exhausted

# NOTE: the process that workers are forked from must never compute: its forks would hang.
PRELOADED = [
    "torch",
    "torch._dynamo",  # imported by an optimizer at its first step
    "torch._inductor.config",  # imported by deterministic mode
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "torch.utils.tensorboard",
    "trainfleet.training.workloads.lm.workload",
    "trainfleet.training.worker",
    "trainfleet.training.trainer.loop",
]
"""Imported before the first fork; workers import everything else themselves."""


def work(file: str) -> None:
    """A worker: trains the recipe in `file`."""
    from trainfleet.training.run import main as run

    if code := run([file]):
        sys.exit(code)


def main() -> int:
    """Run the agent; the exit code."""
    if PARENT in os.environ:
        process.die_with(int(os.environ[PARENT]))
    # NOTE: with a shared store, restarted workers read the addresses of those before them and hang (torch
    # 2.15).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    import multiprocessing
    from multiprocessing import forkserver

    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()  # it imports while this process does

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _use_plain_log_format()
    workers, allowed, checkpoints, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    threading.Thread(target=_watch_forks, daemon=True).start()
    budget = RestartBudget(allowed, Progress(checkpoints).made)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        run_id=str(os.getpid()),
        max_restarts=0,  # torch counts all failures of a launch; the budget those without a later checkpoint
        start_method="forkserver",
        monitor_interval=0.1,
    )
    # Imported by the module's name: in a worker `__main__` is another module.
    from trainfleet.training.launch import torchrun_agent

    sink = EventSink(os.environ.get(EVENTS))
    while True:
        try:
            elastic_launch(config, torchrun_agent.work)(file)
        except ChildFailedError as error:
            sys.stderr.write(f"{error}\n")
            restarting = budget.failed()
            sink.send("attempt_failed", restarting=restarting, text="" if restarting else exhausted(allowed))
            if not restarting:
                return 1
        else:
            return 0


def _use_plain_log_format() -> None:
    """torch's own log format imports the compiler to report an error, which delays a restart by 2 to 5 s."""
    for name in [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "torch"]:
        for handler in logging.getLogger(name).handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))


def _watch_forks() -> None:
    """End the agent when the process that it forks from has ended; nothing else reports that."""
    from multiprocessing import forkserver

    while True:
        time.sleep(1)
        pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if pid is not None and _ended(pid):
            sys.stderr.write("the process that workers are forked from has ended\n")
            os._exit(1)


def _ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not process.alive(pid)


if __name__ == "__main__":
    sys.exit(main())
