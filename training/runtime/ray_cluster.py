"""Ray for one run: a cluster of its own on this machine, or the one at RAY_ADDRESS.

A local Ray starts small (no dashboard, a small object store, its own token), because a start on two cores
is mostly Python imports.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.recipe.schema import ScalingConfig
from trainfleet.training.recipe.schema_data import DataLoading
from trainfleet.training.runtime import elastic, nccl_diagnostics, prestart, restarts
from trainfleet.training.runtime.events import RANK_CPUS, RAY_NODES, RAY_TEMP
from trainfleet.training.runtime.imports import without_collections

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # paths in a recipe are relative to where the command was typed
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",  # a busy machine imports slowly
}
ALONE = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # one machine: if it is preempted, so is everything
    "RAY_TRAIN_METRICS_ENABLED": "0",  # gauges that nobody scrapes; the loop writes its own metrics
}
OBJECT_STORE_BYTES = 150 * 2**20  # with `data_loading.engine: threads`, nothing is sent through it
START_TRIES = 2
JOIN_S, JOIN_POLL_S = 300.0, 0.2
"""How long the other nodes may take to join, and how often they are counted."""


@dataclass(frozen=True)
class RayCluster:
    """A connected Ray."""

    own: bool
    """Whether this process started it, on this machine."""
    storage: str
    nodes: int = 1
    """How many nodes it will have. Those of other pods may join later than the driver connects."""
    rank_cpus: float | None = None
    """What one rank reserves, in CPUs of Ray. By default what the recipe asks for."""

    def require(self, scaling: ScalingConfig, loading: DataLoading = DataLoading()) -> None:
        """Refuse a cluster that can never hold the workers, and the processes that build their batches (an
        autoscaled one may grow, and is believed).

        Raises:
            InputError: too few CPUs or GPUs.
            TrainfleetError: a node has not joined, and the number of workers is fixed.
        """
        import ray

        deadline = time.monotonic() + JOIN_S
        while self.nodes > 1 and (joined := _nodes(ray)) < self.nodes:
            if time.monotonic() > deadline:
                if scaling.min_workers is None:
                    raise _not_joined(joined, self.nodes)
                break
            time.sleep(JOIN_POLL_S)
        have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # ray is typed in part
        workers = scaling.min_workers or scaling.workers
        needs = {"CPU": workers * scaling.cpus_per_worker, "GPU": float(workers if scaling.use_gpu else 0)}
        if os.environ.get("TRAINFLEET_AUTOSCALED"):
            return
        for kind, need in needs.items():
            if have.get(kind, 0.0) < need:
                raise too_few(f"{kind}s", have.get(kind, 0.0), need, workers)
        if have.get("CPU", 0.0) < (need := needs["CPU"] + workers * loading.reserved_cpus):
            raise _too_few_for_batches(have.get("CPU", 0.0), need, workers, loading)

    def train(
        self,
        function: Callable[[dict[str, Any]], None],
        config: dict[str, Any],
        scaling: ScalingConfig,
        checkpoints: str | None = None,
    ) -> None:
        """Run `function(config)` on each worker under Ray Train.

        Failures count until there is a later one in the folder or URL `checkpoints`; without it, all count.

        Raises:
            TrainfleetError: a worker failed more often than `scaling.restarts` allows.
        """
        with without_collections():
            from ray import train as ray_train
            from ray.train.torch import TorchConfig

            from trainfleet.training.runtime.ray_storage import nothing

        trainer = _trainer_class(restarts.Progress(checkpoints).made if checkpoints else None)(
            function,
            train_loop_config=config,
            torch_config=TorchConfig(
                backend="cpu:gloo,cuda:nccl" if scaling.use_gpu else "gloo",
                timeout_s=round(60 * scaling.start_timeout),
            ),
            scaling_config=ray_train.ScalingConfig(
                num_workers=(scaling.min_workers, scaling.workers)
                if scaling.min_workers and not self.own
                else scaling.workers,  # type: ignore[arg-type]  # typed for Tune's search space, documented for two numbers
                use_gpu=scaling.use_gpu,
                resources_per_worker={"CPU": self.rank_cpus or scaling.cpus_per_worker}
                | ({"GPU": 1} if scaling.use_gpu else {}),
                # Ray counts whole CPUs of a node, so that ranks that ask for parts would all fit into one.
                # NOTE: SPREAD alone puts two ranks into a node while another one has not joined again.
                placement_strategy="PACK" if self.own or scaling.use_gpu else "SPREAD",
            ),
            # The run's checkpoints are the loop's own: a restarted worker finds them in the run's folder.
            run_config=ray_train.RunConfig(
                name=f"run-{secrets.token_hex(4)}",
                storage_path=self.storage,
                storage_filesystem=None if self.own or "TRAINFLEET_RAY_STORAGE" in os.environ else nothing(),
                failure_config=ray_train.FailureConfig(max_failures=scaling.restarts),
                worker_runtime_env=_worker_environment(bool(config.get("standby")), scaling.use_gpu),  # type: ignore[call-arg]  # typed for Ray Train's first version
            ),
        )
        try:
            trainer.fit()
        except ray_train.TrainingFailedError as error:
            of_workers = isinstance(restarts.of_worker(error), ray_train.WorkerGroupError)
            counted = of_workers and getattr(trainer, "refilled", False)
            spent = restarts.exhausted(scaling.restarts) if counted else ""
            what = restarts.reason_of(error)
            raise TrainfleetError(f"{spent or 'the workers failed'}: {what}") from error


def _worker_environment(standby: bool, use_gpu: bool) -> dict[str, Any] | None:
    """The `runtime_env` of ranks. Ray Train makes the process group, so NCCL's variables are set here."""
    variables = dict(prestart.environment()["env_vars"]) if standby else {}
    if use_gpu:
        variables |= {name: os.environ.get(name, value) for name, value in nccl_diagnostics.VARIABLES.items()}
    return {"env_vars": variables} if variables else None


def too_few(what: str, have: float, need: float, workers: int) -> InputError:
    """The error for a machine or cluster that is too small."""
    problem = Problem(
        "scaling.workers",
        f"{workers} workers need {need:g} {what}, here are {have:g}",
        "ask for fewer workers, or for a larger machine",
    )
    return InputError(f"fewer {what} than the recipe's workers need", [problem])


def needs_ray(what: str) -> InputError:
    """The error for `data_loading.engine: ray` without Ray."""
    fix = "--on local, kuberay, sky or ray-up, or data_loading.engine=threads"
    return InputError("batches cannot be built by Ray", [Problem("data_loading.engine", what, fix)])


def _too_few_for_batches(have: float, need: float, workers: int, loading: DataLoading) -> InputError:
    processes = f"{workers * loading.processes} processes that build batches"
    problem = Problem(
        "data_loading.workers",
        f"{workers} workers and {processes}, with {loading.cpus_per_worker:g} CPUs each, need {need:g} CPUs; "
        f"here are {have:g}",
        "fewer data_loading.workers, a smaller data_loading.cpus_per_worker, or more nodes",
    )
    return InputError("fewer CPUs than the processes that build batches need", [problem])


def _nodes(ray: Any) -> int:
    return sum(bool(each["Alive"]) for each in ray.nodes())


def _not_joined(joined: int, expected: int) -> TrainfleetError:
    problem = Problem(
        "scaling.workers",
        f"{joined} of {expected} nodes have joined Ray within {JOIN_S:.0f} s",
        "look at Ray's log in the other pods (~/trainfleet/ray.log or ~/.trainfleet/ray.log), and launch "
        "again; with scaling.min_workers, a run starts without the missing nodes",
    )
    return TrainfleetError("not every node of the run has joined", [problem])


def _trainer_class(progress: Callable[[], bool] | None = None) -> Any:
    """TorchTrainer without actors that a run has no use for: they start when its workers do, for 2 to 5 CPU
    seconds each. Its failures count until `progress` says that there is a later checkpoint.

    They are the dataset server (no ray.data here) and the cleaner of placement groups: the driver ends with
    its run, and a placement group that is not detached ends with its creator (ray/util/placement_group.py).
    """
    from ray.train.torch import TorchTrainer

    unused = {"DatasetsCallback", "PlacementGroupCleanerCallback"}

    class LeanTorchTrainer(TorchTrainer):
        refilled = False

        def _create_default_callbacks(self) -> list[Any]:
            callbacks = super()._create_default_callbacks()  # type: ignore[misc]  # checked below
            return [callback for callback in callbacks if type(callback).__name__ not in unused]

        def _initialize_and_run_controller(self, **parts: Any) -> Any:
            # NOTE: private to Ray 2.60. With a version without it, all failures of the launch count, and an
            # elastic run waits for the replacement of a lost node.
            if "scaling_policy" in parts:
                parts["scaling_policy"] = elastic.with_live_nodes(parts["scaling_policy"])
            if progress is not None and "failure_policy" in parts:
                self.refilled = True
                parts["failure_policy"] = restarts.RefilledPolicy(parts["failure_policy"], progress)
            return super()._initialize_and_run_controller(**parts)  # type: ignore[misc]  # called by Ray alone

    if not hasattr(TorchTrainer, "_create_default_callbacks"):
        return TorchTrainer
    return LeanTorchTrainer


@contextlib.contextmanager
def connect(
    scaling: ScalingConfig, env: Mapping[str, str], loading: DataLoading = DataLoading()
) -> Iterator[RayCluster]:
    """Connect to RAY_ADDRESS, or start Ray here, with CPUs for the workers and for the processes that build
    their batches; it ends, and its files go, with the block.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    with contextlib.ExitStack() as connected:
        with without_collections():  # of what this and Ray's calls import
            around = _remote(env) if env.get("RAY_ADDRESS") else _local(scaling, env, loading)
            cluster = connected.enter_context(around)
        yield cluster


@contextlib.contextmanager
def _remote(env: Mapping[str, str]) -> Iterator[RayCluster]:
    import ray

    try:
        ray.init(address=env["RAY_ADDRESS"], log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise TrainfleetError(
            f"cannot connect to Ray at {env['RAY_ADDRESS']}: {_last_line(error)}"
        ) from error
    try:
        _start_coordinator()
        storage = env.get(
            "TRAINFLEET_RAY_STORAGE",
            os.path.join(tempfile.gettempdir(), "trainfleet-ray-results"),  # noqa: PTH118
        )
        rank_cpus = float(env[RANK_CPUS]) if env.get(RANK_CPUS) else None
        yield RayCluster(own=False, storage=storage, nodes=int(env.get(RAY_NODES, "1")), rank_cpus=rank_cpus)
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _local(scaling: ScalingConfig, env: Mapping[str, str], loading: DataLoading) -> Iterator[RayCluster]:
    os.environ |= ALONE
    require_token()
    # Ray's start is waiting for its own processes; torch and pandas, which ray.train needs, load meanwhile.
    warm = threading.Thread(target=_import_ahead, daemon=True)
    warm.start()
    temp = env.get(RAY_TEMP)
    folder = temp or tempfile.mkdtemp(prefix="tf-ray-")
    import ray

    try:
        _start(scaling, folder, loading)
        warm.join()
        _start_coordinator()
        yield RayCluster(own=True, storage=os.path.join(folder, "results"))  # noqa: PTH118 - Ray wants a string
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()
        if temp is None:
            shutil.rmtree(folder, ignore_errors=True)


def require_token() -> None:
    """Make a Ray that this process starts require a token, which is set in this process's environment.

    Without a token there, Ray generates one and writes it to `~/.ray/auth_token`. The token stays the same
    until the process ends, because Ray caches it. Ray reads the mode when it is imported; if a workload has
    already imported it, Ray reads it again.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    if "ray" in sys.modules:
        from ray._raylet import Config  # type: ignore[attr-defined]

        Config.initialize("")  # as ray.init does when it chooses the mode itself


def _start(scaling: ScalingConfig, folder: str, loading: DataLoading) -> None:
    """Start Ray, twice if need be: on a busy machine its agents can be too slow for their own time limit."""
    import ray

    cpus = scaling.workers * (scaling.cpus_per_worker + loading.reserved_cpus)
    for attempt in range(1, START_TRIES + 1):
        try:
            ray.init(
                address="local",
                num_cpus=max(1, math.ceil(cpus)),
                num_gpus=scaling.workers if scaling.use_gpu else 0,
                include_dashboard=False,
                # Batches pass through it: then Ray's own share of the memory.
                object_store_memory=None if loading.processes else OBJECT_STORE_BYTES,
                _temp_dir=folder,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                # Ray's default is one process per CPU, so that ranks with half a CPU each would wait for each
                # other, and all but one request for a spare process would be dropped.
                _system_config={"worker_maximum_startup_concurrency": max(scaling.workers, math.ceil(cpus))},
            )
            return
        except Exception as error:
            ray.shutdown()
            if attempt == START_TRIES:
                raise TrainfleetError(
                    f"Ray did not start in {START_TRIES} tries ({_last_line(error)}); the machine may be "
                    f"too busy, `--on torchrun` needs no Ray"
                ) from error
            sys.stderr.write(f"Ray did not start ({_last_line(error)}); trying once more\n")
            time.sleep(2)


def _import_ahead() -> None:
    with contextlib.suppress(ImportError):
        for name in ("torch", "pandas"):
            importlib.import_module(name)


def _start_coordinator() -> None:
    """Start, without waiting, the actor that Ray Train's controller otherwise waits for (4 s) in the middle
    of its start.
    """
    with contextlib.suppress(ImportError):
        from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
            get_or_create_autoscaling_coordinator,
        )

        get_or_create_autoscaling_coordinator()  # type: ignore[no-untyped-call]  # ray is typed in part


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
