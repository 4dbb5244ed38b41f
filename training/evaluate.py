"""`trainfleet evaluate`: any checkpoint on any split, the samples dealt out to ranks, each once, the metrics
as exact as in one process.

Used by the command line and by `trainfleet.training.publish.export`. Works without Ray. Easy to get wrong: a
run that goes on may save a newer
checkpoint while the ranks start, so they compare what each has opened; and a figure belongs to the
checkpoint's own marker, not its name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.inference.loaded import identity_of, open_trained, precision, run_of
from trainfleet.training.stores import StoreError, open_store

if TYPE_CHECKING:
    from trainfleet.training.inference.loaded import Trained
    from trainfleet.training.workloads import Split

SPLITS = ("train", "validation", "test")
Progress = Callable[[int, int], Any]


@dataclass(frozen=True)
class Evaluation:
    """What was measured.

    Attributes:
        checkpoint: its folder or URL.
        identity: SHA-256 of the checkpoint's marker, which lists its files with their checksums.
        step, split: of which checkpoint, on which split.
        samples, of: how many were looked at, and how many the split has.
        metrics: such as `test/loss`.
        fingerprint: of the data.
        workers, seconds, at: how it was done.
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

    @property
    def file(self) -> str:
        """Where it is kept: a path or URL."""
        return f"{run_of(self.checkpoint)}/{_name(self.split, self.step)}"


def evaluate(
    source: str,
    split: str = "test",
    which: str = "best",
    *,
    workers: int = 1,
    samples: int | None = None,
    progress: Progress = lambda *_: None,
) -> Evaluation:
    """Measure a checkpoint, and keep the figures in RUN/evaluations/SPLIT-STEP.json.

    Args:
        source: a run's folder or URL, or one checkpoint's.
        split: `train`, `validation` or `test`.
        which: `best`, `newest` or `step-N`, where `source` is a run.
        workers: processes; with one it is done in this process.
        samples: at most so many, evenly spread; None for all.
        progress: told of the batches done and in all.

    Raises:
        InputError: nothing there, no such split, or the figures cannot be kept.
        TrainfleetError: the checkpoint cannot be read, or a worker broke off.
    """
    if split not in SPLITS:
        from trainfleet.suggestions import did_you_mean

        raise InputError(
            "no such split", [Problem("--split", f"`{split}` is no split", did_you_mean(split, SPLITS))]
        )
    job = {"source": source, "split": split, "which": which, "samples": samples}
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
    keep(found)
    return found


def work(job: Mapping[str, Any], send: Callable[..., Any]) -> dict[str, Any]:
    """What each rank does; returns the figures of all."""
    import torch
    import torch.distributed as dist

    from trainfleet.training.runtime.process_group import init_from_env, shutdown

    began = time.monotonic()
    trained = open_trained(
        job["source"], job["which"]
    )  # before there is a group: each rank reads the checkpoint for itself
    world = init_from_env(use_gpu=torch.cuda.device_count() >= _local_world_size())
    trained.model.to(world.device)
    identity = identity_of(trained.path)
    if world.world_size > 1:
        seen: list[Any] = [None] * world.world_size
        dist.all_gather_object(seen, identity)
        if len(set(seen)) > 1:
            raise TrainfleetError(
                "the run saved a newer checkpoint meanwhile",
                [Problem(job["source"], "is going on", "name one with --which step-N")],
            )
    try:
        count, metrics = measure(
            trained, job["split"], job["samples"], (world.rank, world.world_size, world.device), send
        )
    finally:
        shutdown()
    return asdict(
        Evaluation(
            checkpoint=trained.path,
            identity=identity,
            step=trained.step,
            split=job["split"],
            samples=count,
            of=trained.workload.size(job["split"]),
            metrics=metrics,
            fingerprint=trained.workload.fingerprint(),
            workers=world.world_size,
            seconds=round(time.monotonic() - began, 3),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
    )


def measure(
    trained: Trained, split: Split, samples: int | None, place: tuple[int, int, str], send: Callable[..., Any]
) -> tuple[int, dict[str, float]]:
    """How many samples were looked at by all ranks, and their figures; `place` is rank, world size and
    device. Every rank must call this.
    """
    import torch

    from trainfleet.training.data import share, spread
    from trainfleet.training.trainer.metrics import MetricsManager, collection_of

    rank, world_size, device = place
    workload = trained.workload
    if workload.size(split) < 1:
        raise InputError(
            "there is nothing to measure",
            [Problem("--split", f"the {split} split is empty", "another split")],
        )
    indices = spread(workload.size(split), samples)
    mine = share(indices, trained.recipe.batch.micro_batch, rank, world_size)
    metrics = MetricsManager(workload.metrics, device, collection_of(workload, split))
    expect = getattr(workload, "expect", None)
    with torch.no_grad(), precision(trained.recipe, device):
        for number, batch in enumerate(mine):
            if expect is not None:
                expect(split, [index for each in mine[number : number + 2] for index in each])
            inputs = {name: value.to(device) for name, value in workload.batch(split, batch).items()}
            metrics.update(workload.outcome(trained.model, inputs))
            if rank == 0:
                send("progress", done=number + 1, total=len(mine))
    return len(indices), {f"{split}/{name}": value for name, value in metrics.compute().items()}


def keep(found: Evaluation) -> None:
    """Write the figures beside the run, whole or not at all.

    Raises:
        StoreError: the run's folder cannot be written.
    """
    open_store(run_of(found.checkpoint)).put(
        _name(found.split, found.step), json.dumps(asdict(found), indent=1).encode()
    )


def kept(checkpoint: str, step: int, split: str) -> Evaluation | None:
    """Figures of a whole split that were measured before on this very checkpoint."""
    try:
        found = Evaluation(**json.loads(open_store(run_of(checkpoint)).read(_name(split, step))))
        return found if found.identity == identity_of(checkpoint) and found.samples == found.of else None
    except (StoreError, ValueError, TypeError):
        return None


def _name(split: str, step: int) -> str:
    return f"evaluations/{split}-{step}.json"


def _local_world_size() -> int:
    import os

    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
