"""The interface between the step loop and a workload: a model, samples and a loss.

A workload knows neither ranks nor steps. It returns sums and counts, never means, so that means over ranks
and
uneven batches are exact.
"""

from __future__ import annotations

import difflib
import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from trainfleet.errors import InputError, Problem

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel
    from torchmetrics import Metric

Split = Literal["train", "validation", "test"]
Precision = Literal["fp32", "bf16"]
IGNORED = -100
"""A target that does not count, as `ignore_index` of torch's cross entropy."""


@dataclass(frozen=True)
class StepOutput:
    """The result of one forward pass.

    Attributes:
        loss: sum over the targets, a scalar to differentiate.
        num_targets: number of targets in the sum; on a GPU it may be a detached scalar there, which the step
            loop does not wait for.
        metric_sums: by name, a detached sum and its count: metrics besides `loss`, reported as sum over
        count.
        metric_inputs: by name, the detached arguments of `update` of the workload's torchmetrics.
    """

    loss: torch.Tensor
    num_targets: float | torch.Tensor
    metric_sums: dict[str, tuple[torch.Tensor, torch.Tensor | int]] = field(default_factory=dict)
    metric_inputs: dict[str, tuple[Any, ...]] = field(default_factory=dict)


class Outcome(StepOutput):
    """Deprecated name of `StepOutput` with its old arguments, for one release."""

    def __new__(  # type: ignore[misc]  # a call creates the class that replaces this one
        cls,
        loss: torch.Tensor,
        weight: float,
        extras: dict[str, tuple[torch.Tensor, torch.Tensor | int]] | None = None,
        seen: dict[str, tuple[Any, ...]] | None = None,
    ) -> StepOutput:
        new = "StepOutput(loss, num_targets, metric_sums, metric_inputs)"
        warnings.warn(f"Outcome is deprecated; use {new}", DeprecationWarning, stacklevel=2)
        return StepOutput(loss, weight, extras or {}, seen or {})


class Workload(ABC):
    """Something to train. The constructor takes the settings and a cache folder, and prepares the data once
    for all ranks of a machine: completely or not at all.

    Attributes:
        sample_tokens: tokens in a sample, for tokens per second; 0 if there are none.
        flops_per_token: floating point operations of a forward and backward pass per token, for MFU.
        metrics: the names in `StepOutput.metric_sums`.
        loss_unit: unit of the loss in reports, for example `nats/token`.
        fields: by name, the type and shape of a sample (None: any size), checked in every batch.
        streamed: with `blocks`, whether `order.shuffle: auto` is a windowed shuffle over them.
        predict_settings: the settings that `predict` accepts: a pydantic model, which also validates them and
            has their defaults, or names; None: its named parameters.
        row_settings: those of them that may differ between the rows of a batch: `predict` then gets a list
            with a value per row.
        streams: whether `predict` takes `hear` and calls it with a row's number and the next piece of its
            text.
        precisions: the types of the weights that inference may ask for, `fp32` and `bf16`. With bf16 the
            model of `build_model` or `import_` is converted, and the batches of `read` are not.
        precision: the type of the weights that `build_model` and `import_` make. It may be set to bf16 before
            they are called; they may ignore it.
        frozen_precision: the type of the weights that `build_model` makes and that are not trained. Set to
            bf16 before a training in bf16; workloads may ignore it.
        on_meta: whether `build_model` works on the meta device and `state_dict` has all of its tensors: a
            checkpoint is then read straight into it, without weights made before.
        wants_metrics: whether this pass needs `metrics`, set before each `forward_loss`: False in training
            steps that are not logged, whose `metric_sums` may leave out what is expensive.
        thread_safe_batch: whether `batch` may run in several threads at once, ahead of the step and at the
            same time as the other hooks, and depends on its arguments only, so that it draws from no random
            generator of the process. A class that overrides `batch` declares it again.
    """

    sample_tokens: int = 0
    flops_per_token: float = 0.0
    metrics: tuple[str, ...] = ()
    loss_unit: str = "nats/target"
    fields: Mapping[str, tuple[str, Sequence[int | None]]] = {}
    streamed: bool = True
    predict_settings: type[BaseModel] | Sequence[str] | None = None
    row_settings: Sequence[str] = ()
    streams: bool = False
    precisions: Sequence[Precision] = ("fp32",)
    precision: Precision = "fp32"
    frozen_precision: Precision = "fp32"
    on_meta: bool = False
    wants_metrics: bool = True
    thread_safe_batch: bool = False

    def check_model(self, model: torch.nn.Module) -> None:  # noqa: B027 - optional
        """Require that the model fits the data, by passes that change nothing. Called once before a training,
        with the model as it is distributed, on all ranks: its forward pass may be collective.

        Raises:
            InputError: it does not.
        """

    def take_notes(self) -> list[str]:
        """What a user should know of how the model is computed, such as a slower way. Asked after each
        pass, and each note is returned once.
        """
        return []

    @abstractmethod
    def fingerprint(self) -> str:
        """Identify the data: a run does not resume from a checkpoint with other data."""

    @abstractmethod
    def build_model(self) -> torch.nn.Module:
        """Build the model with torch's global random generator."""

    @abstractmethod
    def size(self, split: Split) -> int:
        """Number of samples in a split."""

    @abstractmethod
    def batch(self, split: Split, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """The samples at `indices`, on the CPU; the first dimension is the sample."""

    @abstractmethod
    def num_targets(self, split: Split, indices: Sequence[int]) -> float:
        """Number of targets in these samples, without reading them."""

    @abstractmethod
    def forward_loss(self, model: Callable[..., Any], batch: dict[str, torch.Tensor]) -> StepOutput:
        """Run the model on a batch that is on its device."""

    @abstractmethod
    def baseline(self, indices: Sequence[int]) -> dict[str, float]:
        """Metrics of a simple model on the validation samples `indices`, for the report."""

    def blocks(self, split: Split) -> Sequence[int] | None:  # noqa: ARG002 - optional
        """Samples per block file in the order of their indices; None if the data has no blocks."""
        return None

    def prefetch(self, split: Split, indices: Sequence[int]) -> None:  # noqa: B027 - optional
        """Open the blocks of these samples in the background; must return immediately."""

    def data_info(self) -> dict[str, Any]:
        """Entries for run.json, such as `{"data": Prepared.data_info()}`."""
        return {}

    def frozen_source(self) -> str | None:
        """Identify what `build_model` reads the weights that are not trained from, such as a digest of a
        pretrained model's files: checkpoints leave these weights out, and are loaded only where `build_model`
        reads the same. None: checkpoints have every weight. Called after `build_model`, on each machine.
        """
        return None

    def collections(self, split: Split) -> Mapping[str, Metric]:  # noqa: ARG002 - optional
        """torchmetrics by name, updated with `StepOutput.metric_inputs`; each computes one number."""
        return {}

    def assets(self) -> Mapping[str, bytes]:
        """Files by name that `for_inference` needs besides the settings, such as a tokenizer or the names of
        the classes: a few MB. Every checkpoint has them, and a published folder has them in `assets`.
        """
        return {}

    @classmethod
    def for_inference(cls, settings: Any, assets: Mapping[str, bytes], folder: Path | None) -> Self:
        """Construct without the training data. Only `build_model`, `frozen_source`, `read`, `predict`,
        `import_`, and for `evaluate --rows` `read_samples`, `forward_loss` and `collections` are called.
        Optional: without it, predict and serve use the constructor, and so prepare the
        training data.

        Args:
            settings: the recipe's `workload` section.
            assets: what `assets` returned in the training.
            folder: the published folder, from which `import_` will build the model; None for a checkpoint.
        """
        raise NotImplementedError

    def read(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Convert a user's rows (`{"text": ...}`, `{"audio": PATH or samples, "rate": Hz}`, `{"image": ...}`)
        into a batch on the CPU. Required by predict and serve.

        Raises:
            InputError: every row that cannot be read, by its number.
        """
        raise NotImplementedError

    def read_samples(self, rows: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, torch.Tensor]]:
        """Batches for `forward_loss` from a user's rows, which also have the targets. Required by
        `evaluate --rows`.

        Raises:
            InputError: every row that cannot be read, by its number.
        """
        raise NotImplementedError

    def predict(
        self, model: torch.nn.Module, batch: dict[str, torch.Tensor], **settings: Any
    ) -> list[dict[str, Any]]:
        """One JSON value per sample, such as `{"text": ...}`. Required by predict and serve."""
        raise NotImplementedError

    def export(self, model: torch.nn.Module, folder: Path) -> None:
        """Write weights (safetensors), configuration and tokenizer in Hugging Face's layout. Required by
        publish.
        """
        raise NotImplementedError

    def import_(self, folder: Path) -> torch.nn.Module:
        """Build a model from what `export` wrote. Required by publish."""
        raise NotImplementedError


class RenamedMembers:
    """Accepts the member names of the previous release in a user's workload, for one release."""

    NEW_NAMES: ClassVar[Mapping[str, str]] = {
        "outcome": "forward_loss",
        "weight": "num_targets",
        "describe": "loss_unit",
        "expect": "prefetch",
        "facts": "data_info",
    }

    @classmethod
    def in_class(cls, workload: type) -> dict[str, Any]:
        """The new members that a class defines by an old name."""
        found: dict[str, Any] = {}
        for old, new in cls.NEW_NAMES.items():
            for each in workload.__mro__:
                if new in vars(each) and each is not Workload:
                    break
                if old in vars(each):
                    _warn_renamed(workload, old, new)
                    found[new] = vars(each)[old]
                    break
        return found

    @classmethod
    def in_instance(cls, workload: Workload) -> None:
        """Set the new attributes that a constructor set by an old name."""
        for old, new in cls.NEW_NAMES.items():
            if old in vars(workload) and new not in vars(workload):
                _warn_renamed(type(workload), old, new)
                setattr(workload, new, vars(workload)[old])


HOOKS = tuple(name for name in (*vars(Workload), *Workload.__annotations__) if not name.startswith("_"))
"""Every member of the interface."""
SIMILARITY = 0.85
"""From which a method's name counts as a misspelled hook: `prefech` does, `prediction` does not."""


@functools.cache
def adapt(workload: type) -> type[Workload]:
    """A user's workload as a subclass of `Workload`: with defaults for optional hooks and for old names.

    Raises:
        InputError: required members are missing, or public methods look like misspelled hooks.
    """
    renamed = RenamedMembers.in_class(workload)
    if renamed or not issubclass(workload, Workload):
        bases = (workload,) if issubclass(workload, Workload) else (workload, Workload)
        members = {"__module__": workload.__module__, "__qualname__": workload.__qualname__, **renamed}
        adapted: type[Workload] = type(workload.__name__, bases, members)
    else:
        adapted = workload
    misspelled = dict(_misspelled(adapted))
    missing = sorted(adapted.__abstractmethods__ - set(misspelled.values()))
    name = workload.__qualname__
    problems = [
        Problem("workload.name", f"`{name}.{each}` is not a hook of a workload", f"did you mean `{hook}`?")
        for each, hook in misspelled.items()
    ]
    problems += [
        Problem("workload.name", f"`{name}` has no method `{each}`", "see docs/add-a-workload.md")
        for each in missing
    ]
    if problems:
        raise InputError(f"`{name}` does not implement a workload", problems)
    return adapted


def missing_hooks(workload: Workload, *names: str) -> list[str]:
    """The optional hooks among `names` that a workload does not override."""
    return [name for name in names if defining_class(type(workload), name) is Workload]


def batches_in_threads(workload: Workload) -> bool:
    """Whether `batch` may run in threads: `thread_safe_batch`, as declared for the `batch` that is used."""
    if "thread_safe_batch" in vars(workload):
        return workload.thread_safe_batch
    declared, defined = (defining_class(type(workload), name) for name in ("thread_safe_batch", "batch"))
    return workload.thread_safe_batch and issubclass(declared, defined)


def _misspelled(workload: type[Workload]) -> Iterator[tuple[str, str]]:
    """Public methods that no class of Trainfleet declares, and the hook that each resembles, unless the
    workload defines that hook too.
    """
    optional = [name for name in HOOKS if defining_class(workload, name) is Workload]
    for each in workload.__mro__:
        if each.__module__.startswith("trainfleet.") or each is object:
            continue
        for name, member in vars(each).items():
            if name.startswith("_") or name in HOOKS or name in RenamedMembers.NEW_NAMES:
                continue
            if callable(member) and not isinstance(member, type):
                yield from ((name, hook) for hook in difflib.get_close_matches(name, optional, 1, SIMILARITY))


def defining_class(workload: type, name: str) -> type:
    """The class in the inheritance chain that defines a hook."""
    return next(each for each in workload.__mro__ if name in vars(each))


def _warn_renamed(workload: type, old: str, new: str) -> None:
    text = f"{workload.__module__}.{workload.__qualname__}.{old} is deprecated; rename it to `{new}`"
    warnings.warn(text, DeprecationWarning, stacklevel=4)
