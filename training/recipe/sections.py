"""The sections of a recipe: every field, its default and its limits, and nothing that runs.

Used by `trainfleet.training.recipe.load`, which reads them from YAML, overrides and the environment. Easy to
get wrong: a field that
changes the losses must not be listed in `recipe.FREE`, or a resumed run would silently go another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, WrapValidator

from trainfleet.training.workloads.settings import WorkloadSettings, settings_of


def _told_apart(value: Any, read: ModelWrapValidatorHandler[WorkloadSettings]) -> WorkloadSettings:
    """Read `workload:` by the settings of the workload that its `name` names."""
    if isinstance(value, WorkloadSettings) or not isinstance(value, Mapping):
        return read(value)
    if not isinstance(value.get("name"), str):
        return read(
            {key: value[key] for key in ("name",) if key in value}
        )  # fails, and says no more than that
    return settings_of(value["name"]).model_validate(value)


Workload = Annotated[WorkloadSettings, WrapValidator(_told_apart)]
"""What `workload:` may hold: a union told apart by `name`, which packages and users may add to."""


class Section(BaseModel):
    """A group of settings; unknown keys are refused and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Optimizer(Section):
    """AdamW, and the learning rate's way: linear warm-up, then a cosine down to `min_ratio` of the peak, or
    constant.
    """

    name: Literal["adamw"] = "adamw"
    schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="After the warm-up; controllers multiply it."
    )
    lr: float = Field(3e-4, gt=0, description="Peak learning rate.")
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(
        0.1, ge=0, description="For matrices only; vectors (norms, biases) are left out."
    )
    warmup: int = Field(0, ge=0, description="Steps of linear warm-up.")
    min_ratio: float = Field(0.1, ge=0, le=1, description="Last learning rate over the peak.")
    grad_clip: float = Field(1.0, gt=0, description="Largest norm of the gradient over all parameters.")


class Batch(Section):
    """Samples per optimizer step over all workers, and per forward pass of one worker; accumulation follows
    from both.
    """

    global_batch: int = Field(32, ge=1)
    micro_batch: int = Field(8, ge=1)

    def accumulation(self, world_size: int) -> int:
        """Forward passes of each worker per optimizer step."""
        return self.global_batch // (self.micro_batch * world_size)


class SampleOrder(Section):
    """In which order the training samples come; decided by the recipe's seed and the position alone."""

    shuffle: Literal["auto", "full", "window", "none"] = Field(
        "auto",
        description="`full`: a permutation of all; `window`: blocks in random order, mixed a few at a time; `auto`: as the data is at hand or streamed.",
    )
    window_blocks: int = Field(
        16,
        ge=1,
        description="Blocks that `window` mixes with each other: more is closer to a full shuffle, and takes more memory.",
    )


class Validation(Section):
    """When the validation split is looked at, and how much of it (the test split has the same cap, once at
    the end).
    """

    every: int = Field(100, ge=1, description="Steps between validations; the last step always has one.")
    samples: int | None = Field(
        None, ge=1, description="At most so many samples, spread evenly over the split; null = all."
    )


class StorePatience(Section):
    """How long a store that fails is put up with; past it the run stops, its last good checkpoint named."""

    attempts: int = Field(6, ge=1, le=100, description="Tries of each call.")
    first_wait: float = Field(
        0.5, gt=0, description="Seconds before the second try; doubled before each further one."
    )
    longest_wait: float = Field(30.0, gt=0, description="Seconds that a wait is never longer than.")
    stall: float = Field(
        60.0, gt=0, description="Seconds without a byte moving after which a call has failed."
    )


class Checkpoints(Section):
    """When the run is saved and what is kept."""

    every: int = Field(100, ge=1, description="Steps between checkpoints; the last step always has one.")
    keep_last: int = Field(2, ge=1, description="Newest checkpoints kept; the best one is kept besides.")
    keep_best: bool = True
    keep_every: int | None = Field(
        None, ge=1, description="Checkpoints of steps divisible by this are kept for good."
    )
    metric: str = Field(
        "validation/loss", description="What `best` is judged by: a validation metric of the workload."
    )
    mode: Literal["min", "max"] = "min"
    patience: StorePatience = StorePatience()


class Sharding(Section):
    """How `fsdp` and `hsdp` spread a model; `blocks` and `meta_init` hold for `ddp` too."""

    blocks: tuple[str, ...] = Field(
        (),
        description="Classes of the modules that are sharded, recomputed and compiled one by one; empty: found in the model.",
    )
    reshard: bool = Field(
        True,
        description="Give a block's gathered parameters back after each pass: less memory, more gathers.",
    )
    cpu_offload: bool = Field(
        False,
        description="Keep shards and optimizer in the machine's memory; slower, for models that do not fit otherwise.",
    )
    replicas: int | None = Field(
        None, ge=1, description="`hsdp`: how many times the whole model is held; null: once per machine."
    )
    reduce_every: bool = Field(
        False, description="Exchange gradients in every micro batch: more communication, less memory."
    )
    meta_init: bool = Field(
        False,
        description="Make the first weights tensor by tensor, so that a model larger than a rank's memory starts.",
    )


class Log(Section):
    """How often the run speaks."""

    every: int = Field(
        10, ge=1, description="Steps per line, per row of metrics.jsonl and per TensorBoard point."
    )
    tensorboard: bool = True
    prometheus: Literal["off", "ray"] | Annotated[int, Field(ge=1024, le=65535)] = Field(
        "off",
        description="A port of rank 0's machine to serve gauges from, or `ray`: by Ray's own metrics agents.",
    )
    mlflow: str | None = Field(
        None,
        description="MLflow's tracking address, such as http://mlflow:5000 or sqlite:///mlflow.db; needs mlflow.",
    )
    wandb: str | None = Field(
        None, description="Project of Weights & Biases; needs wandb. WANDB_MODE=offline needs no network."
    )


class Scaling(Section):
    """How many processes train, and on what; may change between a kill and its resume."""

    workers: int = Field(1, ge=1)
    min_workers: int | None = Field(
        None,
        ge=1,
        description="Go on with as few when there are no more (Ray); the global batch is kept. null = `workers`.",
    )
    cpus_per_worker: float = Field(1, gt=0)
    use_gpu: bool = False
    threads: int = Field(
        1, ge=1, description="CPU threads per worker; part of what makes a run repeatable to the bit."
    )
    restarts: int = Field(
        2,
        ge=0,
        description="Times that failed workers are started again, from the newest checkpoint, within one launch.",
    )
    standby: bool = Field(
        True,
        description="Keep one more process per worker waiting, its imports done, so that a restart is quicker (Ray); about 0.5 GB each.",
    )


class Guards(Section):
    """What happens to a step whose gradient is no number, or whose loss leaps."""

    nan: Literal["stop", "skip", "roll_back"] = Field(
        "stop", description="Of a gradient that is no finite number."
    )
    spike: Literal["off", "stop", "skip", "roll_back"] = Field(
        "off", description="Of a loss far above the last ones."
    )
    sigmas: float = Field(
        6.0, gt=0, description="How many standard deviations above the last losses' mean is far."
    )
    window: int = Field(
        50,
        ge=4,
        description="How many losses are looked back on; judging begins when half of them are there.",
    )
    limit: int = Field(5, ge=1, description="Refused steps in a row after which the run stops.")


class RateControl(Section):
    """Steers the learning rate; every kind multiplies the schedule's rate."""

    kind: Literal["off", "plateau", "restarts", "backoff"] = "off"
    metric: str = Field("validation/loss", description="What plateau and restarts watch.")
    mode: Literal["min", "max"] = "min"
    factor: float = Field(0.5, gt=0, lt=1, description="What the rate, or a cycle's peak, is multiplied by.")
    floor: float = Field(0.01, gt=0, le=1, description="Smallest multiple of the schedule's rate.")
    patience: int = Field(2, ge=1, description="plateau: validations in a row without a better metric.")
    threshold: float = Field(1e-3, ge=0, description="plateau: how much better counts, as a share.")
    cycle: int = Field(100, ge=2, description="restarts: steps of the first cycle.")
    stretch: float = Field(
        2.0, ge=1, description="restarts: how much longer each cycle is than the one before."
    )
    sigmas: float = Field(
        4.0, gt=0, description="backoff: how many standard deviations above the last losses is a leap."
    )
    window: int = Field(30, ge=4, description="backoff: how many losses are looked back on.")
    recover: int = Field(50, ge=1, description="backoff: steps after which one step back is made good.")


class BatchControl(Section):
    """Steers the global batch by the gradient noise scale."""

    kind: Literal["off", "noise"] = "off"
    largest: int = Field(1024, ge=1, description="Largest global batch.")
    every: int = Field(
        5, ge=1, description="Steps between measurements; each costs one more gradient exchange."
    )
    rule: Literal["none", "sqrt", "linear"] = Field(
        "sqrt", description="How the learning rate grows with the batch."
    )


class Controllers(Section):
    """Settings that the run itself may change; each decision is logged, reported and part of the checkpoint."""

    rate: RateControl = RateControl()
    batch: BatchControl = BatchControl()
    micro_batch: Literal["fixed", "probe"] = Field(
        "fixed", description="probe: the fastest micro batch that fits, tried before the first step."
    )
