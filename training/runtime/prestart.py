"""Prestarted spare processes, so that a restart after a failure does not wait for 5 to 7 s of imports.

A running rank asks Ray to start as many more processes as its machine has ranks. Ray gives a spare process to
the
next actor with the same job and environment. Failures only make a restart slower. Source: Ray's
node_manager.proto, PrestartWorkers.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any

from trainfleet.training.runtime.imports import without_collections

HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
"""Names the function that Ray calls in each process of an environment before its work (`runtime_env` offers
this
for whole jobs only).
"""
MODULES = (
    "trainfleet.training.trainer.loop",
    "ray.train.torch",
    "torch._dynamo",  # imported by an optimizer at its first step
    "torch._inductor.config",  # imported by deterministic mode
)
RAYLET = (
    "ray",
    "ray.core.generated.node_manager_pb2",
    "ray.core.generated.node_manager_pb2_grpc",
    "ray._private.grpc_utils",
)
"""Modules for calls to the local raylet, with TLS and token authentication where enabled."""
KEEP_ALIVE_S = 30 * 24 * 3600
"""Longer than a run. A spare process ends with the job, and is the first to end when memory runs short."""
TIMEOUT_S = 20.0


def environment() -> dict[str, Any]:
    """The `runtime_env` of ranks, which makes processes import what a rank needs.

    NOTE: ranks and spare processes must have exactly the same environment, or spares are never used.
    """
    return {"env_vars": {HOOK: f"{__name__}.import_ahead"}}


def import_ahead() -> None:
    """Import what every rank needs."""
    with without_collections():
        for name in MODULES:
            try:
                importlib.import_module(name)
            except ImportError as error:  # the rank itself reports it
                sys.stderr.write(f"{name} was not imported ahead: {error}\n")


def start_spares(count: int) -> None:
    """Ask Ray to start `count` spare processes on this machine; returns immediately."""
    threading.Thread(target=_start_spares, args=(count,), name="standby", daemon=True).start()


def _start_spares(count: int) -> None:
    try:
        ray, messages, stubs, grpc = (importlib.import_module(name) for name in RAYLET)
        if not ray.is_initialized():  # get_runtime_context would start a Ray
            raise ConnectionError("this process is not connected to Ray")
        context = ray.get_runtime_context()
        here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        request = messages.PrestartWorkersRequest(  # the default language is Python
            job_id=bytes.fromhex(context.get_job_id()),
            num_workers=count,
            keep_alive_duration_secs=KEEP_ALIVE_S,
        )
        request.runtime_env_info.serialized_runtime_env = context.get_runtime_env_string()
        with grpc.init_grpc_channel(f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}") as channel:
            stubs.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=TIMEOUT_S)
    except Exception as error:  # noqa: BLE001 - a private interface of Ray, which is optional here
        sys.stderr.write(f"no spare processes for restarts: {type(error).__name__}: {error}\n")
