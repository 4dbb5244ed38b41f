"""What can be trained: the few methods that the step loop asks of a workload.

A workload brings a model, samples and a loss; it knows neither ranks nor steps. Easy to get wrong: `Outcome`
holds
sums and their weights, never means, so that means over ranks and uneven batches come out exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from trainfleet.training.workloads.settings import workload_of

if TYPE_CHECKING:
    import torch

    from trainfleet.training.recipe.schema import Recipe

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Outcome:
    """What one forward pass found.

    Attributes:
        loss: sum over the targets, the scalar that is differentiated.
        weight: how many targets it is a sum of.
        extras: by name, a detached sum and its weight: metrics besides `loss`, reported as sum over weight.
        seen: by name, the detached arguments of `update` of the workload's torchmetrics collections.
    """

    loss: torch.Tensor
    weight: float
    extras: dict[str, tuple[torch.Tensor, torch.Tensor | int]] = field(default_factory=dict)
    seen: dict[str, tuple[Any, ...]] = field(default_factory=dict)


class Workload(Protocol):
    """Something to train. Making one prepares its data: built once, whole or not at all, and shared by all
    ranks of a machine.
    """

    sample_tokens: int
    """Tokens in a sample, for tokens per second."""
    flops_per_token: float
    """Floating point operations of a forward and backward pass per token, for MFU."""
    metrics: tuple[str, ...]
    """Names that `Outcome.extras` holds."""
    describe: str
    """How a line names the loss, for example `nats/token`."""

    def fingerprint(self) -> str:
        """Identify the data: a checkpoint refuses to go on with other data."""
        ...

    def build_model(self) -> torch.nn.Module:
        """Make the model with the global torch RNG."""
        ...

    def size(self, split: Split) -> int:
        """Samples in a split."""
        ...

    def batch(self, split: Split, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """The samples at `indices`, on the CPU."""
        ...

    def weight(self, split: Split, indices: Sequence[int]) -> float:
        """Targets in these samples, known without reading other ranks' batches."""
        ...

    def outcome(self, model: Callable[..., torch.Tensor], batch: dict[str, torch.Tensor]) -> Outcome:
        """Run the model on a batch that is on its device."""
        ...

    def baseline(self, indices: Sequence[int]) -> dict[str, float]:
        """Figures of a simple model on the validation samples `indices`, for the report."""
        ...


class ReadsBlocks(Protocol):
    """What a workload has besides where its samples lie in block files (`trainfleet.training.data`); the loop
    asks for each, and does without.
    """

    streamed: bool
    """Whether the blocks are more than is kept at hand, so that `order.shuffle: auto` is a windowed shuffle."""

    def blocks(self, split: Split) -> Sequence[int]:
        """Samples per block, in the order of their indices."""
        ...

    def expect(self, split: Split, indices: Sequence[int]) -> None:
        """Open the blocks of these samples in the background; must return at once."""
        ...

    def facts(self) -> dict[str, Any]:
        """What goes into run.json: `{"data": Prepared.facts()}`, with what was left out."""
        ...


class Predicts(Protocol):
    """What a workload has besides where its model can be used after training: by `evaluate`, `predict`,
    `serve` and `publish`.
    """

    def read(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Turn rows as a user has them (`{"text": ...}`, `{"audio": PATH or samples, "rate": Hz}`, `{"image":
        ...}`) into a batch on the CPU.

        Raises:
            InputError: every row that cannot be read, by its number.
        """
        ...

    def predict(
        self, model: torch.nn.Module, batch: dict[str, torch.Tensor], **settings: Any
    ) -> list[dict[str, Any]]:
        """One plain JSON value per sample, such as `{"text": ...}` or `{"label": ..., "score": ...}`."""
        ...

    def export(self, model: torch.nn.Module, folder: Path) -> None:
        """Write weights (safetensors), configuration and tokenizer in Hugging Face's layout."""
        ...

    def import_(self, folder: Path) -> torch.nn.Module:
        """Build a model from what `export` wrote."""
        ...


def make_workload(recipe: Recipe, cache: Path) -> Workload:
    """The workload a recipe names (`trainfleet.training.workloads.settings` finds it), its data ready."""
    workload: Workload = workload_of(recipe.workload.name)(recipe.workload, cache)
    return workload
