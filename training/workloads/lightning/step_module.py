"""A module whose forward pass is a step of a `LightningModule`: what a strategy distributes and calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.base import Split
from trainfleet.training.workloads.lightning.step_log import StepLog, Sums
from trainfleet.training.workloads.lightning.unsupported import (
    MEMBERS,
    no_index,
    no_member,
    of_lightning,
    step_name,
    takes_index,
)

SUMMARY = "the module needs what the step loop does not have"


class StepModule(nn.Module):
    """Calls `training_step`, `validation_step` or `test_step`.

    Its weights are those of the module, by names that start with `lightning_module.`; the module's own
    `forward` and its calls `self(...)` are unchanged.

    Attributes:
        lightning_module: the user's module.
    """

    def __init__(self, module: nn.Module, metrics: tuple[str, ...], loss_names: Mapping[Split, str]) -> None:
        super().__init__()
        self.lightning_module = module
        self._loss_names, self._metrics = loss_names, metrics
        self._log = StepLog(frozenset({*metrics, *loss_names.values()}))
        # As in Lightning, what the module's constructor puts into evaluation mode stays there.
        self._in_evaluation = [each for each in module.modules() if not each.training]
        for each in module.modules():
            if each is module or of_lightning(type(each), "trainer"):
                _provide_members(each, self._log)
        self.train()  # as after a validation

    def train(self, mode: bool = True) -> StepModule:
        """Set the mode of all parts, except those that the module's constructor put into evaluation mode."""
        super().train(mode)
        for each in self._in_evaluation:
            each.training = False
        return self

    def forward(self, split: Split, batch: Any, count: int) -> tuple[torch.Tensor, int, Sums]:
        """A step of a split over `count` samples.

        Returns:
            The loss as a sum over targets, their number, and by name the sums and counts of what was logged.

        Raises:
            InputError: the step returns no loss, or needs what the step loop does not have.
        """
        module = self.lightning_module
        name = step_name(module, split)
        assert name is not None, "checked when the model is built"
        arguments = (batch, NO_INDEX) if takes_index(module, name) else (batch,)
        with self._log.step(count) as sums:
            returned = getattr(module, name)(*arguments)
        where = f"{type(module).__qualname__}.{name}"
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        if isinstance(loss, torch.Tensor):
            if loss.numel() != 1:
                raise _no_loss(where, f"returns a tensor of the shape {list(loss.shape)}", "a scalar mean")
            loss = loss.reshape(()).to(torch.promote_types(loss.dtype, torch.float32)) * count
            return loss, count, self._declared(where, sums, None)
        loss_name = self._loss_names.get(split)
        if split == "train" or loss_name not in sums:
            fix = "the mean loss of the batch, or a dictionary with `loss`"
            fix += f", or log it as `{loss_name}`" if split != "train" else ""
            raise _no_loss(where, f"returns {type(returned).__name__}", fix)
        total, weight = sums[loss_name]
        if not isinstance(total, torch.Tensor):
            total = torch.tensor(total, device=next(self.parameters()).device)
        return total, weight, self._declared(where, sums, loss_name)

    def _declared(self, where: str, sums: Sums, used: str | None) -> Sums:
        """What was logged, without the loss if it has no other name."""
        for name in sums:
            if name not in self._metrics and name != used:
                what = f"returns a loss and logs `{name}` too, which is not declared"
                fix = f"add `{name}` to `metrics` of the workload class"
                raise InputError("a value cannot be logged", [Problem(where, what, fix)])
        return {name: each for name, each in sums.items() if name in self._metrics}


def _no_loss(where: str, what: str, fix: str) -> InputError:
    return InputError("a step has no loss", [Problem(where, what, f"expected {fix}")])


def _refuse_index(*_: object) -> NoReturn:
    raise InputError(SUMMARY, [no_index()])


_OPERATIONS = (
    *("index", "int", "float", "bool", "eq", "ne", "lt", "le", "gt", "ge", "hash", "str", "format"),
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "floordiv", "mod", "rmod", "divmod", "pow"),
)
NO_INDEX: Any = type("NoBatchIndex", (), {f"__{each}__": _refuse_index for each in _OPERATIONS})()
"""Passed as `batch_idx`: may be passed on, and raises InputError when it is used."""


def _provide_members(module: nn.Module, log: StepLog) -> None:
    """Give a module `log`, `log_dict` and its device, and reject the use of members that need a Trainer."""
    of = type(module)
    members: dict[str, Any] = {name: _unavailable(of, name) for name in MEMBERS if of_lightning(of, name)}
    if of_lightning(of, "device"):
        # NOTE: Lightning's own is set by `.to()` of the module itself, which a strategy does not call.
        members["device"] = property(lambda self: next(self.parameters()).device)
    members |= {"__module__": of.__module__, "__qualname__": of.__qualname__}
    module.__class__ = type(of.__name__, (of,), members)
    vars(module).update(log=log.log, log_dict=log.log_dict)


def _unavailable(of: type, name: str) -> property:
    def get(_: Any) -> NoReturn:
        raise InputError(SUMMARY, [no_member(of, name)])

    return property(get)
