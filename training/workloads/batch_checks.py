"""Checks of every batch and output of a workload, so that a mistake is reported before the model fails on it.

The checks run in every micro batch. They read types and shapes only, never values, which would wait for the
device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads import StepOutput, Workload

WEIGHT_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class BatchChecker:
    """Checks one workload: what it declares, and that batches look like the first one."""

    def __init__(self, name: str, workload: Workload) -> None:
        self.name, self.metrics, self.fields = name, tuple(workload.metrics), workload.fields
        self._first: dict[str, torch.Tensor] = {}

    def check_batch(self, split: str, indices: Sequence[int], batch: Any) -> None:
        """Check the result of `batch(split, indices)`.

        Raises:
            InputError: it is not a dictionary of tensors, or tensors have a wrong type or shape (all of
            them).
        """
        where = f"batch of {split}"
        if not isinstance(batch, dict) or not batch:
            self._reject(where, [("", f"is {_kind(batch)}", "a dictionary of tensors by name")])
        problems = [
            (name, *found)
            for name, value in batch.items()
            for found in self._check_field(name, value, len(indices))
        ]
        problems += [
            (name, "is missing", _declared(*self.fields[name])) for name in self.fields if name not in batch
        ]
        if problems:
            self._reject(where, problems)
        for name, value in batch.items():
            self._first.setdefault(name, value[:0])

    def check_output(self, output: Any, metrics: bool = True) -> None:
        """Check the result of `forward_loss`; with `metrics`, also that none is missing.

        Raises:
            InputError: it is not a StepOutput, its loss is not a differentiable sum, or a metric is missing.
        """
        if not isinstance(output, StepOutput):
            self._reject(
                "forward_loss", [("", f"is {_kind(output)}", "a trainfleet.training.workloads.StepOutput")]
            )
        loss, count = output.loss, output.num_targets
        problems = []
        is_scalar = isinstance(loss, torch.Tensor) and loss.dim() == 0
        if not is_scalar or not loss.is_floating_point():
            problems.append(("loss", f"is {_kind(loss)}", "a scalar: the sum over the targets"))
        elif torch.is_grad_enabled() and not loss.requires_grad:
            problems.append(
                ("loss", "was computed without gradients", "no detach() or item() in its computation")
            )
        # The value of a tensor is not read: that would wait for the device.
        scalar = isinstance(count, torch.Tensor) and count.dim() == 0 and not count.requires_grad
        if not scalar and (isinstance(count, torch.Tensor) or not count > 0):
            right = "the number of targets in the loss, above 0: a plain number or a detached scalar"
            problems.append(("num_targets", f"is {_kind(count)}", right))
        problems += [
            ("metric_sums", f"has no `{name}`, which `metrics` declares", "a sum and its count")
            for name in self.metrics
            if metrics and name not in output.metric_sums
        ]
        if problems:
            self._reject("forward_loss", problems)

    @contextmanager
    def describe_errors(self, batch: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Add the batch's types and shapes to errors that the model raises."""
        try:
            yield
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            given = ", ".join(f"{name} {_kind(value)}" for name, value in batch.items())
            error.add_note(f"the workload `{self.name}` was computing the loss of a batch with {given}")
            raise

    def _check_field(self, name: str, value: Any, count: int) -> Iterator[tuple[str, str]]:
        if not isinstance(value, torch.Tensor):
            yield f"is {_kind(value)}", "a tensor"
            return
        if value.device.type != "cpu":
            yield f"is on {value.device}", "the CPU: the step loop moves it to its device"
        if not value.dim() or len(value) != count:
            samples = f"{count} sample{'s' if count != 1 else ''}"
            yield f"has the shape {list(value.shape)} for {samples}", f"{count} as first dimension"
            return
        first = self._first.get(name)
        if name in self.fields:
            kind, shape = self.fields[name]
            if str(value.dtype) != f"torch.{kind}" or not _fits(value.shape[1:], shape):
                yield f"is {_kind(value)}", _declared(kind, shape)
        elif self.fields:
            yield "is not declared", f"one of {', '.join(self.fields)}"
        elif value.is_floating_point() and value.dtype not in WEIGHT_TYPES:
            yield f"is {_kind(value)}", "float32, like the model's weights: .float()"
        elif first is not None and (first.dtype, first.dim()) != (value.dtype, value.dim()):
            yield (
                f"is {_kind(value)}",
                f"{_dtype(first)} with {first.dim()} dimensions, as in the first batch",
            )

    def _reject(self, what: str, problems: Sequence[tuple[str, str, str]]) -> None:
        raise InputError(
            f"the workload `{self.name}` returned invalid values",
            [
                Problem(f"{what}, `{name}`" if name else what, wrong, f"expected {right}")
                for name, wrong, right in problems
            ],
        )


def _fits(shape: Sequence[int], declared: Sequence[int | None]) -> bool:
    return len(shape) == len(declared) and all(
        size in (None, actual) for size, actual in zip(declared, shape, strict=True)
    )


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{_dtype(value)} {list(value.shape)}"
    plain = isinstance(value, int | float | str)
    return f"{type(value).__name__} {value!r:.40}" if plain else type(value).__name__


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _declared(kind: str, shape: Sequence[int | None]) -> str:
    return f"{kind} [{', '.join(['samples', *('any' if size is None else str(size) for size in shape)])}]"
