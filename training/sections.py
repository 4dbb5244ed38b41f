"""The sections of a recipe: every field, its default and its limits, and nothing that runs.

Used by `training.recipe`, which reads them from YAML, overrides and the environment. Easy to get wrong: a field that
changes the losses must not be listed in `recipe.FREE`, or a resumed run would silently go another way.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from training.workloads.lm_settings import LmSettings

WorkloadSettings = LmSettings
"""What `workload:` may hold; with a second workload this becomes a union told apart by `name`."""


class Section(BaseModel):
    """A group of settings; unknown keys are refused and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Optimizer(Section):
    """AdamW, and the learning rate's way: linear warm-up, then a cosine down to `min_ratio` of the peak."""

    name: Literal["adamw"] = "adamw"
    lr: float = Field(3e-4, gt=0, description="Peak learning rate.")
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0, description="For matrices only; vectors (norms, biases) are left out.")
    warmup: int = Field(0, ge=0, description="Steps of linear warm-up.")
    min_ratio: float = Field(0.1, ge=0, le=1, description="Last learning rate over the peak.")
    grad_clip: float = Field(1.0, gt=0, description="Largest norm of the gradient over all parameters.")


class Batch(Section):
    """Samples per optimizer step over all workers, and per forward pass of one worker; accumulation follows from both."""

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
        16, ge=1, description="Blocks that `window` mixes with each other: more is closer to a full shuffle, and takes more memory."
    )


class Validation(Section):
    """When the validation split is looked at, and how much of it (the test split has the same cap, once at the end)."""

    every: int = Field(100, ge=1, description="Steps between validations; the last step always has one.")
    samples: int | None = Field(None, ge=1, description="At most so many samples, spread evenly over the split; null = all.")


class Checkpoints(Section):
    """When the run is saved and what is kept."""

    every: int = Field(100, ge=1, description="Steps between checkpoints; the last step always has one.")
    keep_last: int = Field(2, ge=1, description="Newest checkpoints kept; the best one is kept besides.")
    keep_best: bool = True
    metric: str = Field("validation/loss", description="What `best` is judged by: a validation metric of the workload.")
    mode: Literal["min", "max"] = "min"


class Sharding(Section):
    """How `fsdp` and `hsdp` spread a model; `blocks` and `meta_init` hold for `ddp` too."""

    blocks: tuple[str, ...] = Field(
        (), description="Classes of the modules that are sharded, recomputed and compiled one by one; empty: found in the model."
    )
    reshard: bool = Field(True, description="Give a block's gathered parameters back after its forward pass: less memory, one more gather.")
    cpu_offload: bool = Field(False, description="Keep shards and optimizer in the machine's memory; slower, for models that do not fit otherwise.")
    replicas: int | None = Field(None, ge=1, description="`hsdp`: how many times the whole model is held; null: once per machine.")
    reduce_every: bool = Field(False, description="Exchange gradients in every micro batch: more communication, less memory.")
    meta_init: bool = Field(False, description="Make the first weights tensor by tensor, so that a model larger than a rank's memory starts.")


class Log(Section):
    """How often the run speaks."""

    every: int = Field(10, ge=1, description="Steps per line, per row of metrics.jsonl and per TensorBoard point.")
    tensorboard: bool = True
    prometheus: Literal["off", "ray"] | Annotated[int, Field(ge=1024, le=65535)] = Field(
        "off", description="A port of rank 0's machine to serve gauges from, or `ray`: by Ray's own metrics agents."
    )
    mlflow: str | None = Field(None, description="MLflow's tracking address, such as http://mlflow:5000 or sqlite:///mlflow.db; needs mlflow.")
    wandb: str | None = Field(None, description="Project of Weights & Biases; needs wandb. WANDB_MODE=offline needs no network.")


class Scaling(Section):
    """How many processes train, and on what; may change between a kill and its resume."""

    workers: int = Field(1, ge=1)
    min_workers: int | None = Field(
        None, ge=1, description="Go on with as few when there are no more (Ray); the global batch is kept. null = `workers`."
    )
    cpus_per_worker: float = Field(1, gt=0)
    use_gpu: bool = False
    threads: int = Field(1, ge=1, description="CPU threads per worker; part of what makes a run repeatable to the bit.")
    restarts: int = Field(2, ge=0, description="Times that failed workers are started again, from the newest checkpoint, within one launch.")
