"""`trainfleet evaluate`: exact metrics of a checkpoint on a split, computed by one or several processes.

Each rank evaluates its share, each sample once. A model that was trained in shards is evaluated in shards.
Works without Ray.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.inference.loaded import autocast, identity_of, open_run, run_of, set_precision
from trainfleet.training.inference.sharded import is_sharded
from trainfleet.training.stores import StoreError, open_store

if TYPE_CHECKING:
    from trainfleet.training.inference.loaded import LoadedRun, OpenedRun
    from trainfleet.training.runtime.process_group import World
    from trainfleet.training.workloads import Precision, Split

SPLITS = ("train", "validation", "test")
Progress = Callable[[int, int], Any]


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        checkpoint: its folder or URL.
        identity: SHA-256 of the checkpoint's marker, which lists its files with their checksums.
        step, split: the checkpoint's step and the evaluated split.
        samples, of: number of evaluated samples, and of all samples of the split.
        metrics: such as `test/loss`.
        fingerprint: of the data.
        precision: of the weights, if one was asked for.
        workers, seconds, at: number of processes, duration and time.
    """

    checkpoint: str
    identity: str
    step: int
    split: str
    samples: int
    of: int
    metrics: dict[str, float]
    fingerprint: str
    workers: int
    seconds: float
    at: str
    precision: Precision | None = None

    @property
    def file(self) -> str:
        """Path or URL of the stored result."""
        return f"{run_of(self.checkpoint)}/{_name(self.split, self.step, self.precision)}"


def evaluate(
    source: str,
    split: str = "test",
    which: str = "best",
    *,
    workers: int = 1,
    samples: int | None = None,
    precision: Precision | None = None,
    progress: Progress = lambda *_: None,
) -> Evaluation:
    """Evaluate a checkpoint and store the result in RUN/evaluations/SPLIT-STEP.json, or with a precision in
    SPLIT-STEP-PRECISION.json.

    Args:
        source: folder or URL of a run or checkpoint.
        split: `train`, `validation` or `test`.
        which: `best`, `newest` or `step-N`, if `source` is a run.
        workers: number of processes; 1 runs in this process.
        samples: maximum number of samples, evenly spread; None for all.
        precision: of the weights and of what is computed with them; None: fp32 weights, computed with in the
            precision of the training.
        progress: receives the finished and the total number of batches.

    Raises:
        InputError: no run, no such split, fewer GPUs than workers, or the result cannot be stored.
        TrainfleetError: the checkpoint cannot be read, or a worker failed.
    """
    require_split(split)
    job = {"source": source, "split": split, "which": which, "samples": samples, "precision": precision}
    _require_gpus(workers)
    if workers == 1:
        found = Evaluation(**work(job, lambda _, **event: progress(event["done"], event["total"])))
    else:
        from trainfleet.training.runtime import local_resources, subprocess_jobs

        threads = max(1, local_resources.cpus() // workers)
        found = Evaluation(
            **subprocess_jobs.run(
                "trainfleet.training.evaluate:work",
                job,
                ranks=workers,
                threads=threads,
                hear=lambda e: progress(e["done"], e["total"]),
            )
        )
    store(found)
    return found


def require_split(split: str) -> None:
    """Require the name of a split.

    Raises:
        InputError: it is not one.
    """
    if split not in SPLITS:
        from trainfleet.suggestions import did_you_mean

        raise InputError(
            "unknown split", [Problem("--split", f"`{split}` is not a split", did_you_mean(split, SPLITS))]
        )


def _require_gpus(workers: int) -> None:
    """Reject more processes than GPUs on a machine that has some: all of them would compute on its CPUs."""
    from trainfleet.training.runtime.local_resources import gpus

    if 0 < (have := gpus()) < workers:
        what = f"{workers} processes need a GPU each, this machine has {have}"
        fix = f"--workers {have}, or CUDA_VISIBLE_DEVICES= to use its CPUs"
        raise InputError("fewer GPUs than workers", [Problem("--workers", what, fix)])


def work(job: Mapping[str, Any], send: Callable[..., Any]) -> dict[str, Any]:
    """Run one rank; returns the result over all ranks."""
    import torch

    from trainfleet.training.runtime.process_group import init_from_env, shutdown

    # Opened before the process group exists: each rank reads the checkpoint, or its share, by itself.
    opened = _open(job)
    world = init_from_env(use_gpu=torch.cuda.device_count() >= _local_world_size())
    try:
        return _evaluated(job, opened, world, send)
    finally:
        shutdown()


def on_ranks(job: Mapping[str, Any], world: World, send: Callable[..., Any]) -> dict[str, Any]:
    """Evaluate on the ranks of an existing process group, and store the result with the model's run.

    Collective.

    Args:
        job: `source`, `split`, `which`, `samples` and `precision`, as `evaluate` takes them.
        world: this rank's place.
        send: receives the progress.

    Returns:
        The fields of `Evaluation`, and `file`.

    Raises:
        TrainfleetError: as `evaluate`.
    """
    from trainfleet.training.runtime.collectives import after_all
    from trainfleet.training.runtime.process_group import on_first

    opened = after_all(lambda: _open(job))
    found = Evaluation(**_evaluated(job, opened, world, send))
    on_first(lambda: store(found), world.rank)
    return asdict(found) | {"file": found.file}


def _open(job: Mapping[str, Any]) -> OpenedRun:
    opened = open_run(job["source"], job["which"])
    set_precision(opened.workload, opened.recipe, job.get("precision"))
    return opened


def _evaluated(
    job: Mapping[str, Any], opened: OpenedRun, world: World, send: Callable[..., Any]
) -> dict[str, Any]:
    import torch.distributed as dist

    began = time.monotonic()
    sharded = is_sharded(opened.recipe, world.world_size)
    loaded = opened.load(world.device, job.get("precision"), sharded=sharded)
    identity = identity_of(loaded.path)
    if world.world_size > 1:
        # An active run may save a newer checkpoint while the ranks start
        identities: list[Any] = [None] * world.world_size
        dist.all_gather_object(identities, identity)
        if len(set(identities)) > 1:
            raise TrainfleetError(
                "the run saved a newer checkpoint during the start",
                [Problem(job["source"], "is still training", "select a checkpoint with --which step-N")],
            )
    place = (world.rank, world.world_size, world.device)
    count, metrics = measure(
        loaded, job["split"], job["samples"], place, send, precision=job.get("precision")
    )
    return asdict(
        Evaluation(
            checkpoint=loaded.path,
            identity=identity,
            step=loaded.step,
            split=job["split"],
            samples=count,
            of=loaded.workload.size(job["split"]),
            metrics=metrics,
            fingerprint=loaded.workload.fingerprint(),
            workers=world.world_size,
            seconds=round(time.monotonic() - began, 3),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            precision=job.get("precision"),
        )
    )


def measure(
    loaded: LoadedRun,
    split: Split,
    samples: int | None,
    place: tuple[int, int, str],
    send: Callable[..., Any],
    *,
    precision: Precision | None = None,
) -> tuple[int, dict[str, float]]:
    """Number of samples evaluated by all ranks, and their metrics. Every rank must call this.

    Args:
        loaded: the model and its workload.
        split: what to measure on.
        samples: maximum number; None for all.
        place: rank, world size and device.
        send: receives the progress, as `send(kind, **fields)`.
        precision: of the computation; None for that of the training.
    """
    import torch

    from trainfleet.training.data import share, spread
    from trainfleet.training.trainer.metrics import MetricsManager

    rank, world_size, device = place
    workload = loaded.workload
    if workload.size(split) < 1:
        raise InputError(
            "there is nothing to evaluate",
            [Problem("--split", f"the {split} split is empty", "use another split")],
        )
    indices = spread(workload.size(split), samples)
    mine, most = (share(indices, loaded.recipe.batch.micro_batch, each, world_size) for each in (rank, 0))
    metrics = MetricsManager(workload.metrics, device, workload.collections(split))

    def forward(batch: list[int]) -> Any:
        inputs = {name: value.to(device) for name, value in workload.batch(split, batch).items()}
        return workload.forward_loss(loaded.model, inputs)

    with torch.no_grad(), autocast(loaded.recipe, device, precision, sharded=loaded.sharded):
        for number, batch in enumerate(mine):
            workload.prefetch(split, [index for each in mine[number : number + 2] for index in each])
            metrics.update(forward(batch))
            if rank == 0:
                send("progress", done=number + 1, total=len(mine))
        # Rank 0 has the most batches. NOTE: the others must join its collective forward passes.
        if loaded.sharded and len(mine) < len(most):
            forward(list(indices[:1]))
    return len(indices), {f"{split}/{name}": value for name, value in metrics.compute().items()}


def store(found: Evaluation) -> None:
    """Write a result to the run atomically.

    Raises:
        StoreError: the run's folder cannot be written.
    """
    open_store(run_of(found.checkpoint)).put(
        _name(found.split, found.step, found.precision), json.dumps(asdict(found), indent=1).encode()
    )


def stored(checkpoint: str, step: int, split: str) -> Evaluation | None:
    """A stored evaluation of a whole split on this very checkpoint, in the precision of its training."""
    try:
        found = Evaluation(**json.loads(open_store(run_of(checkpoint)).read(_name(split, step))))
        return found if found.identity == identity_of(checkpoint) and found.samples == found.of else None
    except (StoreError, ValueError, TypeError):
        return None


def _name(split: str, step: int, precision: Precision | None = None) -> str:
    return f"evaluations/{split}-{step}{f'-{precision}' if precision else ''}.json"


def _local_world_size() -> int:
    import os

    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
