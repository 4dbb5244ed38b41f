"""Is what a workload gives what it should give? Asked of every batch and outcome, so that a mistake in one is
named and not met in the model.

Used by `trainfleet.training.trainer.step`. A workload may declare `fields`: by name a type and the shape of
one sample, `None` for any size. Easy to get
wrong: this runs in every micro batch, so it looks at types and shapes alone, never at values, which would
wait for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads import Outcome

WEIGHTS = (torch.float32, torch.bfloat16, torch.float16)


class Judge:
    """Knows one workload: its name, what it declares, and what its first batch looked like."""

    def __init__(self, name: str, workload: Any) -> None:
        self.name, self.metrics = name, tuple(workload.metrics)
        self.fields: Mapping[str, tuple[str, Sequence[int | None]]] = getattr(workload, "fields", {})
        self._first: dict[str, torch.Tensor] = {}

    def batch(self, split: str, indices: Sequence[int], batch: Any) -> None:
        """Look at what `batch(split, indices)` gave.

        Raises:
            InputError: it is no dictionary of tensors, or tensors have another type or shape than they
            should; all of them.
        """
        if not isinstance(batch, dict) or not batch:
            self._refuse(f"batch of {split}", [("", f"is {_kind(batch)}", "a dictionary of tensors by name")])
        problems = [
            (name, *found)
            for name, value in batch.items()
            for found in self._field(name, value, len(indices))
        ]
        problems += [
            (name, "is missing", _declared(*self.fields[name])) for name in self.fields if name not in batch
        ]
        if problems:
            self._refuse(f"batch of {split}", problems)
        for name, value in batch.items():
            self._first.setdefault(name, value[:0])

    def outcome(self, outcome: Any) -> None:
        """Look at what `outcome` gave.

        Raises:
            InputError: it is no Outcome, its loss is no sum that can be differentiated, or a metric is
            missing.
        """
        if not isinstance(outcome, Outcome):
            self._refuse("outcome", [("", f"is {_kind(outcome)}", "a trainfleet.training.workloads.Outcome")])
        loss, problems = outcome.loss, []
        if (
            not isinstance(loss, torch.Tensor)
            or loss.numel() != 1
            or loss.dim()
            or not loss.is_floating_point()
        ):
            problems.append(("loss", f"is {_kind(loss)}", "one number: the sum over the targets"))
        elif torch.is_grad_enabled() and not loss.requires_grad:
            problems.append(
                ("loss", "was computed without gradients", "no detach() and no item() on the way to it")
            )
        if isinstance(outcome.weight, torch.Tensor) or not outcome.weight > 0:
            problems.append(
                (
                    "weight",
                    f"is {_kind(outcome.weight)}",
                    "how many targets the loss is a sum of, a plain number above 0",
                )
            )
        problems += [
            ("extras", f"has no `{name}`, which `metrics` names", "a sum and its weight")
            for name in self.metrics
            if name not in outcome.extras
        ]
        if problems:
            self._refuse("outcome", problems)

    @contextmanager
    def naming(self, batch: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Add to what the model raises what it was given."""
        try:
            yield
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            given = ", ".join(f"{name} {_kind(value)}" for name, value in batch.items())
            error.add_note(f"the workload `{self.name}` was computing the loss of a batch with {given}")
            raise

    def _field(self, name: str, value: Any, count: int) -> Iterator[tuple[str, str]]:
        if not isinstance(value, torch.Tensor):
            yield f"is {_kind(value)}", "a tensor"
            return
        if value.device.type != "cpu":
            yield f"lies on {value.device}", "the CPU: the step loop brings it to its device"
        if not value.dim() or len(value) != count:
            yield (
                f"has the shape {list(value.shape)} for {count} sample{'s' if count != 1 else ''}",
                f"the first size to be {count}",
            )
            return
        first = self._first.get(name)
        if name in self.fields:
            kind, shape = self.fields[name]
            have = list(value.shape[1:])
            same = len(have) == len(shape) and all(
                want in (None, got) for want, got in zip(shape, have, strict=True)
            )
            if str(value.dtype) != f"torch.{kind}" or not same:
                yield f"is {_kind(value)}", _declared(kind, shape)
        elif self.fields:
            yield "is not declared", f"one of {', '.join(self.fields)}"
        elif value.is_floating_point() and value.dtype not in WEIGHTS:
            yield f"is {_kind(value)}", "float32, as the model's weights are: .float()"
        elif first is not None and (first.dtype, first.dim()) != (value.dtype, value.dim()):
            yield (
                f"is {_kind(value)}",
                f"{_dtype(first)} with {first.dim()} dimensions, as in the first batch",
            )

    def _refuse(self, what: str, problems: Sequence[tuple[str, str, str]]) -> None:
        raise InputError(
            f"the workload `{self.name}` gives what it should not",
            [
                Problem(f"{what}, `{name}`" if name else what, wrong, f"expected {right}")
                for name, wrong, right in problems
            ],
        )


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{_dtype(value)} {list(value.shape)}"
    return (
        f"{type(value).__name__} {value!r:.40}"
        if isinstance(value, int | float | str)
        else type(value).__name__
    )


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _declared(kind: str, shape: Sequence[int | None]) -> str:
    return f"{kind} [{', '.join(['samples', *('any' if size is None else str(size) for size in shape)])}]"
