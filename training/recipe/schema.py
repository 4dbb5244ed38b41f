"""The schema of a recipe: every key, its default and its limits. Rules between keys are in `validation`.

A key that changes the losses must not be listed in `changes.FREE_KEYS`: a resumed run would silently diverge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, SerializeAsAny, WrapValidator
from pydantic_core import PydanticCustomError

from trainfleet.training.recipe.schema_control import ControllersConfig, GuardsConfig
from trainfleet.training.recipe.schema_data import DataLoading, SampleOrder
from trainfleet.training.recipe.schema_reports import Log, Profile
from trainfleet.training.recipe.schema_tuning import PublishConfig, TuneConfig
from trainfleet.training.stores.urls import is_remote
from trainfleet.training.workloads.settings import Section, WorkloadSettings, settings_of


def _select_settings(value: Any, validate: ModelWrapValidatorHandler[WorkloadSettings]) -> WorkloadSettings:
    """Validate `workload:` with the settings class of the workload that `name` selects."""
    if isinstance(value, WorkloadSettings) or not isinstance(value, Mapping):
        return validate(value)
    if not isinstance(value.get("name"), str):
        return validate({key: value[key] for key in ("name",) if key in value})  # reports `name` only
    return settings_of(value["name"]).model_validate(value)


AnyWorkloadSettings = Annotated[WorkloadSettings, WrapValidator(_select_settings)]
"""The value of `workload:`: a union discriminated by `name`, which packages and users extend."""


MOMENTUM = 0.95
"""Muon's default. Source: https://kellerjordan.github.io/posts/muon/"""


class Optimizer(Section):
    """AdamW or Muon with linear warm-up, then cosine decay to `min_ratio` of the peak learning rate,
    constant, or constant with a final linear decay (`wsd`).
    """

    name: Literal["adamw", "muon"] = Field(
        "adamw", description="`muon`: Muon for the matrices of the blocks, AdamW for all others."
    )
    schedule: Literal["cosine", "constant", "wsd"] = Field(
        "cosine", description="Learning rate after the warm-up; controllers multiply it."
    )
    decay: float = Field(
        0.1, gt=0, le=1, description="wsd: share of all steps in which the rate falls to `min_ratio`."
    )
    lr: float = Field(3e-4, gt=0, description="Peak learning rate.")
    betas: tuple[float, float] = Field(
        (0.9, 0.95), description="Decay rates of AdamW's first and second moments."
    )
    eps: float = Field(1e-8, gt=0, description="Added to AdamW's denominator.")
    momentum: float = Field(MOMENTUM, ge=0, lt=1, description="Decay rate of Muon's momentum.")
    weight_decay: float = Field(
        0.1, ge=0, description="Applied to matrices only, not to vectors (norms, biases)."
    )
    warmup: int = Field(0, ge=0, description="Steps of linear warm-up.")
    min_ratio: float = Field(0.1, ge=0, le=1, description="Final learning rate divided by the peak.")
    grad_clip: float = Field(1.0, gt=0, description="Maximum norm of the gradient over all parameters.")


class Ema(Section):
    """An exponential moving average of the weights."""

    decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Weight of the average in each step, such as 0.999. It is validated, tested and "
        "published in place of the weights. null: none.",
    )


class Float8(Section):
    """Matrix products of the blocks' linear layers in float8; needs `precision: bf16` and torchao."""

    scaling: Literal["none", "tensorwise", "rowwise"] = Field(
        "none",
        description="`tensorwise`: one scale per tensor, the fastest; `rowwise`: one per row, more exact. "
        "They need compute capability 8.9 (L4, L40S) and 9.0 (H100).",
    )
    emulate: bool = Field(
        False, description="Round in the same way on any device, and multiply in bf16: slow, to try it."
    )


class Batch(Section):
    """Samples per optimizer step over all workers, and per forward pass of one worker. Gradient accumulation
    follows from both.
    """

    global_batch: int = Field(32, ge=1, description="Samples per optimizer step, over all workers.")
    micro_batch: int = Field(8, ge=1, description="Samples per forward pass of one worker.")

    def accumulation(self, world_size: int) -> int:
        """Forward passes of each worker per optimizer step."""
        return self.global_batch // (self.micro_batch * world_size)


class Validation(Section):
    """When to validate and on how many samples. The same limit applies to the test split at the end."""

    every: int = Field(100, ge=1, description="Steps between validations; the last step is always validated.")
    samples: int | None = Field(
        None, ge=1, description="Maximum number of samples, spread evenly over the split; null = 10,000."
    )


class StoreRetry(Section):
    """How long to retry a request to a failing store. Then the save has failed (`checkpoint.tolerate`)."""

    attempts: int = Field(6, ge=1, le=100, description="Attempts per request.")
    first_wait: float = Field(
        0.5, gt=0, description="Seconds before the second attempt; doubled for each further one."
    )
    longest_wait: float = Field(30.0, gt=0, description="Maximum seconds between two attempts.")
    stall: float = Field(60.0, gt=0, description="Seconds without progress after which a request fails.")


class SaveTolerance(Section):
    """A run ends if more than `saves` failed in a row, and none was complete for `minutes`."""

    saves: int = Field(3, ge=0, description="Saves in a row that may fail while the store does not respond.")
    minutes: float = Field(30.0, ge=0, description="Minutes for which the store may be unavailable.")


class CheckpointConfig(Section):
    """When to save the run, and which checkpoints to keep."""

    every: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        100,
        description="Steps between checkpoints, or `auto`: by the time that a save costs and `mtbf_hours`. "
        "The last step is always saved.",
    )
    mtbf_hours: float | None = Field(
        None,
        gt=0,
        description="`every: auto`: hours between two failures of one machine, such as 24 for spot machines. "
        "null = 6300.",
    )
    keep_last: int = Field(2, ge=1, description="Number of newest checkpoints to keep, besides the best one.")
    keep_best: bool = Field(True, description="Keep the checkpoint with the best `metric` as well.")
    keep_every: int | None = Field(
        None, ge=1, description="Keep checkpoints of steps divisible by this permanently."
    )
    metric: str = Field(
        "validation/loss", description="Validation metric that decides which checkpoint is best."
    )
    mode: Literal["min", "max"] = Field(
        "min", description="Whether a smaller or a larger `metric` is better."
    )
    patience: StoreRetry = StoreRetry()
    tolerate: SaveTolerance = SaveTolerance()


class Sharding(Section):
    """How `fsdp` and `hsdp` shard a model, in `evaluate` too; `blocks` and `meta_init` apply to `ddp` too."""

    blocks: tuple[str, ...] = Field(
        (),
        description="Module classes to shard, recompute and compile one by one; empty: detected in the "
        "model.",
    )
    reshard: bool = Field(
        True,
        description="Free a block's gathered parameters after each pass: less memory, more all-gathers.",
    )
    cpu_offload: bool = Field(
        False,
        description="Keep shards and optimizer state in host memory; slower, for models that do not fit "
        "otherwise.",
    )
    replicas: int | None = Field(
        None, ge=1, description="`hsdp`: number of copies of the whole model; null: one per machine."
    )
    reduce_every: bool = Field(
        False, description="Reduce gradients in every micro batch: more communication, less memory."
    )
    meta_init: Literal["auto"] | bool = Field(
        "auto",
        description="Create or read the initial weights tensor by tensor, for models larger than a rank's "
        "memory. auto: where they are read from files of safetensors.",
    )


class ScalingConfig(Section):
    """How many processes train, and on which resources. May change between an interruption and its resume."""

    workers: int = Field(1, ge=1, description="Number of worker processes.")
    min_workers: int | None = Field(
        None,
        ge=1,
        description="Continue with this many workers when no more are available (Ray); the global batch is"
        " kept. null = `workers`.",
    )
    cpus_per_worker: float = Field(1, gt=0, description="CPUs that each worker reserves.")
    use_gpu: bool = Field(False, description="Reserve one GPU for each worker.")
    threads: int = Field(
        1, ge=1, description="CPU threads per worker; affects whether a run repeats bit for bit."
    )
    restarts: int = Field(
        2,
        ge=0,
        description="How often failed workers are restarted from the newest checkpoint without a later one. "
        "Each later checkpoint starts the count again.",
    )
    start_timeout: float = Field(
        30.0,
        gt=0,
        description="Minutes that workers wait for each other at a start. Preparing data does not count.",
    )
    hang_timeout: float = Field(
        60.0,
        ge=0,
        description="Seconds after which a step is late, at least ten times the longest one before. If a "
        "worker then does not respond, or none continues, all are restarted. 0 = never.",
    )
    standby: bool = Field(
        True,
        description="Keep one prestarted process per worker, so that a restart is faster (Ray); about 0.5 "
        "GB each.",
    )


class Limits(Section):
    """When a run saves and ends early, over all of its starts. May change between starts."""

    max_hours: float | None = Field(
        None,
        gt=0,
        description="Hours for which the run may train, over all starts. The time before the workers build "
        "the model does not count.",
    )
    max_usd: float | None = Field(
        None,
        gt=0,
        description="What these hours may cost at the prices of the platform's contract.",
    )


def _variable_name(value: Any) -> Any:
    """Reject what is not a variable's name. NOTE: never shows it: it may be the address, with its token."""
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise PydanticCustomError("variable_name", "must be the name of a variable, not its value")
    return value


VariableName = Annotated[str, BeforeValidator(_variable_name)]
RunEvent = Literal["start", "failure", "preemption", "end", "budget"]


class Notifications(Section):
    """Messages about the run. An address contains a token, so the recipe names the variable that holds it."""

    webhook: VariableName | None = Field(
        None, description="Variable with the https:// URL of a webhook, which gets JSON."
    )
    signing_key: VariableName | None = Field(
        None, description="Variable with the base64 key that signs the webhook's messages."
    )
    slack: VariableName | None = Field(
        None, description="Variable with the URL of an incoming webhook of Slack."
    )
    events: tuple[RunEvent, ...] = Field(
        ("start", "failure", "preemption", "end", "budget"),
        min_length=1,
        description="What to report. `budget`: 80 % or all of a limit is used.",
    )

    @property
    def enabled(self) -> bool:
        """Whether there is anyone to report to."""
        return self.webhook is not None or self.slack is not None


class PodTemplate(Section):
    """Changes of the run's pods on Kubernetes, as `--pod-template` has them: strategic merge patches of pod
    templates. Applied after those of the stack.
    """

    head: dict[str, Any] = Field({}, description="Of Ray's head (KubeRay).")
    workers: dict[str, Any] = Field({}, description="Of the pods that train. Their container is `trainer`.")


class Recipe(Section):
    """A training run, declared."""

    name: str = Field(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        description="Lowercase letters, digits and dashes; the default name of the run folder.",
    )
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="Seed of the weights, the order of samples and dropout."
    )
    workload: SerializeAsAny[AnyWorkloadSettings]
    strategy: Literal["ddp", "fsdp", "hsdp"] = Field(
        "ddp",
        description="`ddp`: the whole model on every rank; `fsdp`: sharded; `hsdp`: sharded and replicated.",
    )
    sharding: Sharding = Sharding()
    activation_checkpointing: Literal["none", "selective", "full"] = Field(
        "none", description="Recompute activations in the backward pass instead of keeping them."
    )
    compile: bool = Field(
        False, description="Compile the model's blocks with torch.compile; needs a C++ compiler."
    )
    optimizer: Optimizer = Optimizer()
    ema: Ema = Ema()
    batch: Batch = Batch()
    order: SampleOrder = SampleOrder()
    data_loading: DataLoading = DataLoading()
    steps: int | None = Field(None, ge=1, description="Optimizer steps; give this or `epochs`.")
    epochs: float | None = Field(
        None, gt=0, description="Passes over the training split; converted to steps."
    )
    precision: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Type of the forward and backward pass: bf16 uses autocast; trained weights stay fp32.",
    )
    reduce_precision: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Type in which workers exchange gradients; bf16 halves the bytes and rounds to 8 bits.",
    )
    float8: Float8 = Float8()
    deterministic: bool | Literal["auto"] = Field(
        "auto",
        description="Reject operations that are not deterministic; auto: on CPUs. On GPUs some losses (CTC) "
        "have none, and others are slower.",
    )
    validation: Validation = Validation()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guards: GuardsConfig = GuardsConfig()
    controllers: ControllersConfig = ControllersConfig()
    log: Log = Log()
    profile: Profile = Profile()
    scaling: ScalingConfig = ScalingConfig()
    limits: Limits = Limits()
    notifications: Notifications = Notifications()
    pod_template: PodTemplate = PodTemplate()
    publish: PublishConfig = PublishConfig()
    tune: TuneConfig | None = Field(None, description="A hyperparameter search over this recipe's keys.")
    storage: str = Field(
        "runs", description="Folder or URL (file://, s3://, gs://, az://) that contains the run folder."
    )

    @property
    def meta_init(self) -> Literal["auto"] | bool:
        """`sharding.meta_init`; auto only where the model's weights are in files."""
        asked = self.sharding.meta_init
        return asked if asked != "auto" or self.workload.reads_weights() else False

    @property
    def cpus_per_rank(self) -> float:
        """CPUs that one worker reserves, with the processes that build its batches."""
        return self.scaling.cpus_per_worker + self.data_loading.reserved_cpus

    def total_steps(self, train_samples: int) -> int:
        """Optimizer steps of the whole run; `epochs` is converted by the size of the training split."""
        if self.steps is not None:
            return self.steps
        return max(1, -int(-(self.epochs or 1) * train_samples // self.batch.global_batch))

    def run_dir(self) -> Path:
        """The default run folder on this machine: STORAGE/NAME, or runs/NAME if `storage` is a URL."""
        folder = "runs" if is_remote(self.storage) else self.storage.removeprefix("file://")
        return Path(folder) / self.name

    def home_url(self) -> str:
        """Where the run is stored: STORAGE/NAME, a URL if `storage` is one."""
        return f"{self.storage.rstrip('/')}/{self.name}" if is_remote(self.storage) else str(self.run_dir())
