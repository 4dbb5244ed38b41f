"""What `self.log` of a module records in one pass: sums and counts, so that means over ranks are exact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from trainfleet.errors import InputError, Problem
from trainfleet.training.runs.schema import TrainRow

RESERVED = frozenset({"loss", *TrainRow.__annotations__})
"""Names that the step loop logs itself."""
SUMMARY = "a value cannot be logged"
MEANS = ("mean", "avg", torch.mean)

Sums = dict[str, tuple[torch.Tensor | float, int]]
"""By name, the sum over samples and the number of samples."""


def check_names(workload: str, metrics: tuple[str, ...]) -> None:
    """Require names that the step loop does not use.

    Raises:
        InputError: names every other one.
    """
    problems = [
        Problem(f"{workload}.metrics", f"the step loop logs `{name}` itself", "log it by another name")
        for name in metrics
        if name in RESERVED
    ]
    if problems:
        raise InputError("metrics have reserved names", problems)


def wrong_call(name: str, known: frozenset[str], settings: Mapping[str, Any]) -> Problem | None:
    """Why `self.log(name, ..., **settings)` cannot be honoured; None if it can."""
    where = f"self.log({name!r})"
    if name in RESERVED:
        return Problem(where, "the step loop logs this name itself", "log it by another name")
    if name not in known:
        fix = f"add it to `metrics` of the workload class, which has {', '.join(sorted(known))}"
        return Problem(where, "this name is not declared", fix)
    unsupported = {
        "logger": settings.get("logger") is False,
        "reduce_fx": settings.get("reduce_fx", "mean") not in MEANS,
        **{each: bool(settings.get(each)) for each in ("enable_graph", "rank_zero_only")},
        **{each: settings.get(each) is not None for each in ("sync_dist_group", "metric_attribute")},
    }
    if wrong := [argument for argument, asked in unsupported.items() if asked]:
        what = f"`{'`, `'.join(wrong)}` cannot be honoured"
        return Problem(where, what, "the step loop logs the mean over all samples of all ranks")
    return None


class StepLog:
    """Provides `log` and `log_dict` of a module, with Lightning's arguments.

    Args:
        known: names that may be logged.
    """

    def __init__(self, known: frozenset[str]) -> None:
        self._known = known
        self._sums: Sums | None = None
        self._count = 0

    @contextmanager
    def step(self, count: int) -> Iterator[Sums]:
        """Record what is logged in a pass over `count` samples."""
        self._sums, self._count = {}, count
        try:
            yield self._sums
        finally:
            self._sums = None

    def log(  # noqa: PLR0917 - Lightning's signature
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,  # noqa: ARG002 - says where Lightning shows the value
        logger: bool | None = None,
        on_step: bool | None = None,  # noqa: ARG002 - says when Lightning shows the value
        on_epoch: bool | None = None,  # noqa: ARG002 - says when Lightning shows the value
        reduce_fx: Any = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,  # noqa: ARG002 - all values are means over all ranks
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,  # noqa: ARG002 - there is one loader
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Record a mean over the samples of the pass. Arguments that are not described have no effect here.

        Args:
            name: as declared in `metrics`.
            value: a number, or a tensor with one element.
            logger: only True or None.
            reduce_fx: only the mean.
            enable_graph: only False.
            sync_dist_group: only None.
            batch_size: weight of the value; by default the number of samples of the pass.
            metric_attribute: only None.
            rank_zero_only: only False.

        Raises:
            InputError: the name is not declared, the value is not a number, or an argument asks for anything
                but a mean over all samples of all ranks.
        """
        where = f"self.log({name!r})"
        if self._sums is None:
            raise _error(where, "is called outside of a step", "call it in `training_step`, for example")
        settings = {"logger": logger, "reduce_fx": reduce_fx, "enable_graph": enable_graph}
        settings |= {"sync_dist_group": sync_dist_group, "metric_attribute": metric_attribute}
        if problem := wrong_call(name, self._known, {**settings, "rank_zero_only": rank_zero_only}):
            raise InputError(SUMMARY, [problem])
        if batch_size is not None and not (isinstance(batch_size, int) and batch_size > 0):
            raise _error(where, f"`batch_size` is {batch_size!r}", "a whole number above 0")
        count = self._count if batch_size is None else batch_size
        total, before = self._sums.get(name, (0.0, 0))
        self._sums[name] = (total + self._number(where, value) * count, before + count)

    def log_dict(self, dictionary: Mapping[str, Any], **settings: Any) -> None:
        """`log` for each entry."""
        for name, value in dictionary.items():
            self.log(name, value, **settings)

    def _number(self, where: str, value: Any) -> torch.Tensor | float:
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            return value.detach().reshape(()).float()
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, torch.nn.Module):  # a torchmetrics.Metric or MetricCollection
            what = f"is a {type(value).__name__}, whose state the step loop does not merge"
            raise _error(where, what, "log the value of its call on this batch: `metric(prediction, target)`")
        shape = f" of the shape {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
        raise _error(where, f"is a {type(value).__name__}{shape}", "a number or a tensor with one element")


def _error(where: str, what: str, fix: str) -> InputError:
    return InputError(SUMMARY, [Problem(where, what, fix)])
