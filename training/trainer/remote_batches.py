"""Builds batches in processes of a rank's Ray cluster: `data_loading.engine: ray`.

The order of samples is a function of the position, so a batch is asked for by its samples, as from a thread.
Any process builds any batch, with the same result, and what is lost with one is built again by another.
"""

# Not a pipeline of ray.data (`range(...).map(Build, ...).iter_batches()` with `preserve_order`). It keeps the
# order and replaces lost actors, but Ray 2.60 starts new actors for each pipeline, so at each validation,
# batch size and position (9 s with warm files, on two busy CPUs); it raises an error when it occurs, not in
# the step that needs the batch (batch 40 failed when 26 had been taken); and what it builds ahead is limited
# by bytes, not by a number of batches (all of 60, where one was taken).

from __future__ import annotations

import contextlib
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime import code_archive, prestart
from trainfleet.training.runtime.ray_cluster import needs_ray
from trainfleet.training.trainer.context import default_cache
from trainfleet.training.trainer.state import torch_settings
from trainfleet.training.workloads import Split, Workload, make_workload

KEY = "data_loading.engine"
MORE_TRIES = 3
"""How often a batch may be lost, besides once with each process: a lost node can take all of them."""
PATIENCE_S = 60.0
"""After how long without any batch the run reports that it waits."""
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", prestart.HOOK: ""}
"""Of the processes: they need no GPU, and are not to use up the ranks' spare processes."""


@dataclass(frozen=True)
class Encoded:
    """A batch as it is sent: by name, its type, shape and bytes, which Ray neither pickles nor copies to
    read them on the machine where they were written; other layouts than contiguous ones as they are.
    """

    parts: Mapping[str, Any]


def encode(given: Any) -> Any:
    """What `Workload.batch` returned, to be sent. Other values than batches are sent as they are: the rank
    reports them.

    Raises:
        InputError: it has gradients, which stay in the process that computed them.
    """
    if not isinstance(given, dict):
        return given
    tensors = [each for each in given.values() if isinstance(each, torch.Tensor)]
    if len(tensors) < len(given) or any(each.device.type != "cpu" for each in tensors):
        return given
    if names := [str(name) for name, value in given.items() if value.requires_grad]:
        what = f"`{', '.join(names)}` of the batch has gradients, which do not leave a process"
        raise refused(what)
    return Encoded({name: _bytes_of(value) for name, value in given.items()})


def _bytes_of(value: torch.Tensor) -> Any:
    plain = value.layout is torch.strided and value.is_contiguous() and value.numel()
    if not plain or value.is_conj() or value.is_neg():
        return value
    return value.dtype, value.shape, value.reshape(-1).view(torch.uint8).numpy()


def decode(sent: Any, own: bool) -> Any:
    """The inverse of `encode`.

    Args:
        sent: as it was received.
        own: copy what is in the memory that Ray shares between processes. Otherwise the batch may only be
            read, and keeps that memory in use.
    """
    if not isinstance(sent, Encoded):
        return sent
    return {name: _tensor(part, own) for name, part in sent.parts.items()}


def _tensor(part: Any, own: bool) -> torch.Tensor:
    if isinstance(part, torch.Tensor):
        return part
    dtype, shape, raw = part
    return torch.from_numpy(raw.copy() if own else raw).view(dtype).reshape(shape)


class BatchBuilder:
    """The actor: a workload with its data open, which builds one batch at a time.

    Its constructor only stores values: an error in it would be that of a dead actor, and not of a batch.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._workload: Workload | None = None
        self._settings = contextlib.ExitStack()

    def build(
        self, split: Split, indices: list[int], grad: bool, upcoming: tuple[Split, Sequence[int]] | None
    ) -> Any:
        """The samples, encoded. `upcoming` is what this and other processes will be asked for."""
        workload = self._workload or self._open()
        if upcoming is not None:
            workload.prefetch(*upcoming)
        with torch.set_grad_enabled(grad):
            return encode(workload.batch(split, indices))

    def _open(self) -> Workload:
        config = self._config
        code_archive.use(*config["code"])
        recipe = Recipe.model_validate(config["recipe"])
        self._settings.enter_context(torch_settings(recipe))
        workload = make_workload(recipe, config["cache"] or default_cache())
        if (found := workload.fingerprint()) != config["fingerprint"]:
            what = f"{socket.gethostname()} has {found}, the worker {config['fingerprint']}"
            raise InputError(
                "a node has other data", [Problem("workload.data", what, "the same data on all nodes")]
            )
        self._workload = workload
        return workload


@dataclass(eq=False)
class _Process:
    """A place in the pool; `actor` is replaced when it is lost."""

    actor: Any
    batches: int = 0
    """Which it has been asked for."""


class RemoteBatches:
    """The processes of one rank. `batch` may be called in several threads; each waits for its own batch.

    Attributes:
        depth: batches that can be in work or waiting for a process.
    """

    def __init__(
        self,
        recipe: Recipe,
        workload: Workload,
        device: str,
        cache: Path | None,
        notify: Callable[[str, str], Any],
    ) -> None:
        """Start nothing yet.

        Args:
            recipe: its `data_loading`.
            workload: as the rank has opened it. The processes must open the same data.
            device: of the rank; for a GPU, batches are read in place.
            cache: folder of prepared data, on each machine; None: its default.
            notify: called with the kind of an event and a sentence about it.

        Raises:
            InputError: this process is not part of a Ray cluster.
        """
        import ray

        if not ray.is_initialized():
            raise needs_ray("this worker was started without Ray")
        self._loading, self._workload, self._notify = recipe.data_loading, workload, notify
        self._config: dict[str, Any] = {
            "recipe": recipe.model_dump(mode="json"),
            "cache": None if cache == default_cache() else cache,  # the default may differ between nodes
            "code": code_archive.current(),
        }
        self._own = torch.device(device).type == "cpu"
        self.depth = self._loading.processes * self._loading.prefetch_factor
        self._processes: list[_Process] = []
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Notified when a process has a batch less."""
        self._lost = 0
        """Batches that were lost and wait for a process of their own."""
        self._closed = self._reported = False
        self._built_at = time.monotonic()
        """When a process has built a batch, last."""
        self._upcoming: tuple[Split, Sequence[int]] | None = None
        if not self._own:
            # NOTE: torch warns that it could write into the memory: nothing does, it is copied to the GPU.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    def start(self) -> None:
        """Start the processes, without waiting for them. Further calls do nothing."""
        with self._lock:
            if self._processes or self._closed:
                return
            self._config["fingerprint"] = self._workload.fingerprint()
            self._processes = [_Process(self._new()) for _ in range(self._loading.processes)]
            self._changed.notify_all()

    def prefetch(self, split: Split, indices: Sequence[int]) -> None:
        """Have the processes open the blocks of these samples."""
        self._upcoming = (split, indices)

    def batch(self, split: Split, indices: list[int]) -> Any:
        """What `Workload.batch` returned in one of the processes.

        Raises:
            Exception: what it raised there.
            TrainfleetError: the batch was lost with its process again and again.
        """
        from ray.exceptions import RayError, RayTaskError

        lost: Exception | None = None
        for number in range(1 + len(self._processes) + MORE_TRIES):
            with self._process(alone=number > 0) as process:
                actor = process.actor
                try:
                    asked = actor.build.remote(split, indices, torch.is_grad_enabled(), self._upcoming)
                    return decode(self._wait(asked), self._own)
                except RayTaskError as error:
                    raise error.cause from error
                except RayError as error:
                    lost = error
                    if self._closed:
                        raise
                    self._replace(process, actor, error)
        what = f"the processes that built it were lost, the last one so: {_first_line(lost)}"
        fix = "if they ran out of memory, use a smaller batch, or less data_loading.workers on a node"
        raise TrainfleetError(f"a batch of {split} cannot be built", [Problem(KEY, what, fix)]) from lost

    @contextlib.contextmanager
    def _process(self, alone: bool) -> Iterator[_Process]:
        """The process with the fewest batches. A batch that was lost once is built `alone`, before others:
        of several batches in one process, nothing shows which one ended it.
        """
        most = 1 if alone else self._loading.prefetch_factor
        with self._changed:
            self._lost += alone
            try:
                while not (found := self._with_fewer_batches_than(most, alone)):
                    self._changed.wait()
            finally:
                self._lost -= alone
            added = self._loading.prefetch_factor if alone else 1
            found.batches += added
        try:
            yield found
        finally:
            with self._changed:
                found.batches -= added
                self._changed.notify_all()

    def _with_fewer_batches_than(self, most: int, alone: bool) -> _Process | None:
        if self._lost and not alone:
            return None
        if self._closed:
            raise TrainfleetError("batches are not built any more: the run has ended")
        found = min(self._processes, key=lambda each: each.batches, default=None)
        return found if found and found.batches < most else None

    def close(self) -> None:
        """End the processes."""
        import ray

        with self._lock:
            self._closed = True
            for process in self._processes:
                with contextlib.suppress(Exception):  # Ray may have ended
                    ray.kill(process.actor)
            self._processes = []
            self._changed.notify_all()

    def _new(self) -> Any:
        """Start an actor. It is outside of the ranks' placement group (`DEFAULT`), so it never takes their
        CPUs, and Ray prefers nodes without GPUs for it. It ends with this process, which owns it.
        """
        import ray

        options: dict[str, Any] = {
            "num_cpus": self._loading.cpus_per_worker,
            "num_gpus": 0,
            "max_restarts": 0,
            "scheduling_strategy": "DEFAULT",
            "runtime_env": {"env_vars": ENVIRONMENT},
        }
        return ray.remote(**options)(BatchBuilder).remote(self._config)

    def _wait(self, asked: Any) -> Any:
        import ray
        from ray.exceptions import GetTimeoutError

        while True:
            try:
                sent = ray.get(asked, timeout=PATIENCE_S)
            except GetTimeoutError:
                self._report_waiting()
            else:
                self._built_at, self._reported = time.monotonic(), False
                return sent

    def _report_waiting(self) -> None:
        with self._lock:
            if self._reported or time.monotonic() - self._built_at < PATIENCE_S:
                return
            self._reported = True
        needed = f"{self._loading.processes} x {self._loading.cpus_per_worker:g}"
        self._notify(
            "warning",
            f"no process has built a batch for {PATIENCE_S:.0f} s ({KEY}=ray): they need {needed} free CPUs "
            "per worker, and open their data first",
        )

    def _replace(self, process: _Process, actor: Any, error: Exception) -> None:
        """Start another actor in the place of a lost one, once for all batches that were lost with it."""
        import ray

        with self._lock:
            if self._closed or process.actor is not actor:
                return
            with contextlib.suppress(Exception):  # it is dead, or its node does not respond
                ray.kill(actor)
            process.actor = self._new()
        what = f"a process that builds batches was lost, and is replaced: {_first_line(error)}"
        self._notify("warning", what)


def refused(what: str) -> InputError:
    """The error for batches that can be built in the step loop only."""
    fix = "data_loading.engine=threads with data_loading.workers=0"
    return InputError("batches cannot be built by Ray", [Problem(KEY, what, fix)])


def _first_line(error: Exception | None) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
