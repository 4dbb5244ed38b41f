"""The formats of a run folder and of a run's events: rows of metrics.jsonl, run.json, messages to the
launcher.

Metrics are further keys of a row: `loss`, `accuracy` of a training interval, `validation/loss`, `test/loss`.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

VERSION = 1
"""Of these formats. Readers accept every field that an older version lacks."""

MARKER = "COMMITTED"
"""The file that makes a checkpoint complete; it is written last."""
PROFILES = "profile/"
"""Recorded steps, below a run's folder or URL."""
LOG_KINDS = ("event", "decision")
"""Kinds of rows that report what happened, not metrics of a step."""


class TrainRow(TypedDict):
    """Means of a training interval, every `log.every` steps."""

    kind: Literal["train"]
    step: int
    steps: int
    """Steps in all, if the batch size stays as it is."""
    epoch: float
    loss: float
    lr: float
    grad_norm: float
    """Of the last step, before clipping."""
    global_batch: int
    communication: NotRequired[float]
    """Share of a step spent waiting for other ranks' gradients, if measured."""
    samples_per_second: float
    tokens_per_second: float
    mfu: float | None
    data_wait: float
    """Share of the time in steps in which rank 0 waited for data."""
    least_data_wait: NotRequired[float]
    """The same on the rank that waits the shortest, if there are several."""
    slowest_data_wait: NotRequired[float]
    """The same on the rank that waits the longest."""
    slowest_data_wait_rank: NotRequired[int]
    slowest_data_wait_node: NotRequired[str]
    """The name of that rank's machine."""
    slowest_backward_seconds: NotRequired[float]
    """Of the backward pass of a micro batch on the slowest rank, with ddp and several ranks."""
    step_seconds: float
    checkpoint_seconds: float
    checkpoint_every: NotRequired[int]
    """Steps between checkpoints, where the run chooses them."""
    validation_seconds: float
    eta_seconds: float
    usd: NotRequired[float]
    """What the run has cost so far, where the price of its machines is known."""
    dropped_notifications: NotRequired[int]
    """Messages about the run that could not be sent by this start, if there are any."""
    failed_saves: NotRequired[int]
    """Checkpoints that this start could not save, if there are any."""


class MetricsRow(TypedDict):
    """Metrics of a whole validation or test; their names start with the kind and a slash."""

    kind: Literal["validation", "test"]
    step: int


class DecisionRow(TypedDict):
    """A change made by a controller."""

    kind: Literal["decision"]
    step: int
    what: str
    old: float
    new: float
    why: str


class EventRow(TypedDict):
    """Something that happened to the run, such as `skip` or `roll_back`."""

    kind: Literal["event"]
    step: int
    what: str
    text: str


class Versions(TypedDict):
    """The software that trained; also part of a checkpoint."""

    trainfleet: str
    torch: str
    python: str
    platform: str


class Start(Versions):
    """A start of the step loop: fresh, resumed or restarted."""

    at: str
    from_step: int
    revision: str
    code: NotRequired[str]
    """Digest of the user's code that this process imported."""
    held_seconds: NotRequired[float]
    """How long its machines were held, until the last checkpoint or its end."""
    trained_seconds: NotRequired[float]
    """How much of that it spent in steps, validations and checkpoints."""
    usd_per_hour: NotRequired[float]
    """Their price, where it is known."""


class LaunchedCode(TypedDict):
    """The user's code of a launch, by `--code`."""

    folder: str
    digest: str
    """Of its archive, `code/DIGEST.tar.gz` in the run's folder or store; empty if it was not archived."""
    files: int


class Launch(TypedDict, total=False):
    """A command that started or resumed the run."""

    at: str
    on: str
    recipe: str
    workers: int
    machine: str
    seconds: float
    status: str
    admitted_seconds: float
    """How long it waited in a queue, if a launcher saw the admission."""
    requeued_seconds: float
    """How long it waited there again, after preemptions."""
    first_step_seconds: float
    last_step: int
    owner: str
    host: str
    pid: int
    pid_started: float
    """When the launcher's process started, in seconds since 1970."""
    folder: str
    storage: str
    starts_before: int
    """The starts of the loop that run.json had when it was launched."""
    place: dict[str, Any]
    """What another machine needs to reach the run; the fields depend on the launcher."""
    attached: bool
    """It only followed the run of another launch."""
    stacks: list[str]
    context: str
    namespace: str
    code: LaunchedCode


class Result(TypedDict):
    """The result of a launch; also the event `result`."""

    status: Literal["finished", "stopped"]
    step: int
    metrics: dict[str, float]
    baseline: dict[str, float]
    checkpoint: str | None
    resumed_from: int
    run_dir: str
    limits: NotRequired[list[str]]
    """The limits of the recipe that ended the run."""
    evaluation: NotRequired[dict[str, Any]]
    """What `evaluate --on` found, in place of a training."""
    predictions: NotRequired[dict[str, Any]]
    """The manifest of `predict --on`, in place of a training."""


class RunRecord(TypedDict, total=False):
    """run.json. A launcher writes `launches` and `result`, the step loop everything else."""

    name: str
    status: Literal["running", "finished", "stopped", "failed"]
    error: str
    starts: list[Start]
    launches: list[Launch]
    workload: str
    unit: str
    parameters: int
    world_size: int
    device: str
    steps: int
    train_samples: int
    baseline: dict[str, float]
    data: dict[str, Any]
    step: int
    asked: int
    """Steps that a finished run was asked for; 0 if it was stopped."""
    metrics: dict[str, float]
    result: Result


EventKind = Literal[
    "worker", "step", "interval", "event", "checkpoint", "result", "error", "crash", "attempt_failed"
]


class WorkerEvent(TypedDict):
    """A rank has started."""

    kind: Literal["worker"]
    rank: int
    pid: int


class StepEvent(TypedDict):
    """Progress, at most a few times per second."""

    kind: Literal["step"]
    step: int
    total: int


class IntervalEvent(TypedDict):
    """A row of metrics.jsonl."""

    kind: Literal["interval"]
    row: TrainRow


class NoticeEvent(TypedDict):
    """What happened, and a sentence about it."""

    kind: Literal["event"]
    what: str
    text: str


class CheckpointEvent(TypedDict):
    """A checkpoint is complete."""

    kind: Literal["checkpoint"]
    step: int
    path: str


class ResultEvent(Result):
    """The end of the run."""

    kind: Literal["result"]


class ErrorEvent(TypedDict):
    """An error that the user can fix; it ends the run without a restart."""

    kind: Literal["error"]
    summary: str
    problems: list[list[str]]
    """Each: where, what, fix."""
    exit_code: int


class CrashEvent(TypedDict):
    """Any other exception on a rank."""

    kind: Literal["crash"]
    rank: int
    error: str
    trace: str


class AttemptFailedEvent(TypedDict):
    """The workers of torchrun have failed."""

    kind: Literal["attempt_failed"]
    restarting: bool
    text: str
    """Why they do not restart, if they did before."""


Event = (
    WorkerEvent
    | StepEvent
    | IntervalEvent
    | NoticeEvent
    | CheckpointEvent
    | ResultEvent
    | ErrorEvent
    | CrashEvent
    | AttemptFailedEvent
)
