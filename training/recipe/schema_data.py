"""The sections of a recipe about the order of samples and the building of batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainfleet.training.workloads.settings import Section


class SampleOrder(Section):
    """The order of the training samples. It depends only on the recipe's seed and the position."""

    shuffle: Literal["auto", "full", "window", "none"] = Field(
        "auto",
        description="`full`: a permutation of all samples; `window`: blocks in random order, a few shuffled"
        " together; `auto`: `full` for local data, `window` for streamed data.",
    )
    window_blocks: int = Field(
        16,
        ge=1,
        description="Blocks that `window` shuffles together: more is closer to a full shuffle and uses more"
        " memory.",
    )


PREFETCH_FACTOR = 2
"""Micro batches that a worker of the loader builds ahead: the default of torch.utils.data.DataLoader."""
RESERVED_CPUS = 1.0


class DataLoading(Section):
    """How each worker builds its next micro batches ahead of the step. Losses do not depend on it."""

    engine: Literal["threads", "ray"] = Field(
        "threads",
        description="What builds batches: `threads` of each worker, or with `ray` processes anywhere in the "
        "Ray cluster, such as on nodes without GPUs, for expensive transforms.",
    )
    workers: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto",
        description="Threads per worker that build batches, or with `ray` processes per worker; 0: the step "
        "loop builds each one when it needs it; `auto`: 1 where the workload declares `thread_safe_batch` "
        "(on CPUs only if building a batch takes at least a tenth of a step), else 0.",
    )
    prefetch_factor: int = Field(
        PREFETCH_FACTOR,
        ge=1,
        description="Micro batches that each thread or process builds ahead; on GPUs they are copied ahead "
        "too.",
    )
    cpus_per_worker: float = Field(
        RESERVED_CPUS, gt=0, description="CPUs that each process of `ray` reserves in the cluster."
    )

    @property
    def processes(self) -> int:
        """Processes of Ray that build batches for one rank; 0 with threads."""
        if self.engine != "ray":
            return 0
        return self.workers if isinstance(self.workers, int) else 1

    @property
    def reserved_cpus(self) -> float:
        """CPUs that these processes reserve."""
        return self.processes * self.cpus_per_worker
