"""Processes that wait to be ranks: when Ray restarts the workers of a run, the next ones have imported
already.

A rank imports for 5 to 7 s of processor time before it does anything, and after a loss the run waits for
that. So a running rank asks
the Ray of its own machine for as many more processes as the machine has ranks, and Ray gives a waiting
process to the next actor of the
same job and environment. `ray_cluster` says in which environment ranks start, `worker` asks. Easy to get
wrong: the environment must be
the same to the byte; and nothing here may ever end a run, which only starts slower without it. Source: Ray's
node_manager.proto.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any

HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
"""What Ray calls in each process of an environment before it is given any work (`runtime_env` offers it for
whole jobs only).
"""
MODULES = ("trainfleet.training.trainer.loop", "ray.train.torch")
RAYLET = (
    "ray",
    "ray.core.generated.node_manager_pb2",
    "ray.core.generated.node_manager_pb2_grpc",
    "ray._private.grpc_utils",
)
"""What it takes to talk to the Ray of this machine, by TLS and with the token where they are on."""
KEPT_S = 30 * 24 * 3600
"""How long Ray leaves a process waiting: longer than a run; it goes with the job, or first of all when memory
runs short.
"""
PATIENCE_S = 20.0


def environment() -> dict[str, Any]:
    """The `runtime_env` of ranks: each imports what a rank needs before it is one."""
    return {"env_vars": {HOOK: f"{__name__}.import_ahead"}}


def import_ahead() -> None:
    """Import what every rank needs, as far as it is there."""
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:  # the rank itself says so, to the run's user
            sys.stderr.write(f"{name} was not imported ahead: {error}\n")


def ask(count: int) -> None:
    """Have Ray start `count` more processes on this machine, for later; returns at once."""
    threading.Thread(target=_ask, args=(count,), name="standby", daemon=True).start()


def _ask(count: int) -> None:
    try:
        ray, messages, stubs, grpc = (importlib.import_module(name) for name in RAYLET)
        if not ray.is_initialized():  # asking for the context would start one
            raise ConnectionError("this process is not Ray's")
        context = ray.get_runtime_context()
        here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        request = messages.PrestartWorkersRequest(  # its language is Python if nothing is said
            job_id=bytes.fromhex(context.get_job_id()), num_workers=count, keep_alive_duration_secs=KEPT_S
        )
        request.runtime_env_info.serialized_runtime_env = context.get_runtime_env_string()
        with grpc.init_grpc_channel(f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}") as channel:
            stubs.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=PATIENCE_S)
    except Exception as error:  # noqa: BLE001 - parts of Ray that are not promised to anyone: without them a restart takes as long as it does
        sys.stderr.write(f"no process waits for a restart: {type(error).__name__}: {error}\n")
