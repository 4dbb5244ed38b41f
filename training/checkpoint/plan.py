"""What each rank writes of a state, and the host memory it is copied to: torch's checkpoint planner, asked
once and remembered.

Used by `trainfleet.training.checkpoint.checkpoints`. Replicas are dealt out over ranks, so under DDP each
copies and writes its share only. Easy to get
wrong: the copy must be whole before the next step changes the weights, and the buffers free before the next
save fills them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.tensor import DTensor

from trainfleet.errors import InputError, Problem
from trainfleet.training.runtime.collectives import Ranks

Staged = list[tuple[WriteItem, torch.Tensor | bytes]]
"""What a rank has to write: each item with its bytes in host memory."""


@dataclass(frozen=True)
class Plan:
    """One rank's share; `metadata` describes the whole and is on rank 0 only. `shape` is what it was made
    for.
    """

    items: list[WriteItem]
    metadata: Metadata | None
    shape: list[tuple[Any, ...]]


class Staging:
    """Copies a state to host memory, by a plan that is made anew only where names, sizes or types changed."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.plan: Plan | None = None
        self._buffers: dict[Any, torch.Tensor] = {}

    def copy(self, tensors: Mapping[str, Any]) -> Staged:
        """This rank's share of the state as it is now. Every rank must call this; the buffers are used again
        by the next call.
        """
        planner = DefaultSavePlanner()
        planner.set_up_planner(dict(tensors), is_coordinator=self._ranks.rank == 0)
        shape = shape_of(planner.state_dict)
        if self._ranks.any(self.plan is None or self.plan.shape != shape):
            self.plan = _agree(planner, shape, self._ranks)
            self._buffers.clear()
        assert self.plan is not None
        staged: Staged = []
        on_gpu = False
        for item in self.plan.items:
            data = planner.resolve_data(item)
            if isinstance(data, io.BytesIO):
                staged.append((item, data.getvalue()))
                continue
            on_gpu = on_gpu or data.is_cuda
            buffer = self._buffers.get(item.index)
            if buffer is None:
                buffer = torch.empty(data.shape, dtype=data.dtype, pin_memory=data.is_cuda)
                self._buffers[item.index] = buffer
            buffer.copy_(data.detach(), non_blocking=data.is_cuda)
            staged.append((item, buffer))
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return staged


def shape_of(flat: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Names, sizes, types and places of a flat state: equal means that a plan still fits."""
    return [
        (name, tuple(value.shape), value.dtype, value.placements if isinstance(value, DTensor) else None)
        if isinstance(value, torch.Tensor)
        else (name,)
        for name, value in flat.items()
    ]


def _agree(planner: DefaultSavePlanner, shape: list[tuple[Any, ...]], ranks: Ranks) -> Plan:
    """Let rank 0 deal out who writes what: what several ranks have is written once."""
    gathered: list[SavePlan] = ranks.gather(planner.create_local_plan())
    metadata: Metadata | None = None
    shares: list[SavePlan] | None = None
    if ranks.rank == 0:
        shares, metadata = planner.create_global_plan(gathered)
    mine = ranks.scatter(shares)
    return Plan(mine.items, metadata, shape)


def flat(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A nested state by the names that a checkpoint has for its parts."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(tensors))
    return dict(planner.state_dict)


def require_fit(
    metadata: Metadata, tensors: Mapping[str, Any], where: str, module: torch.nn.Module | None = None
) -> None:
    """Refuse a checkpoint that holds another model than `tensors` would take.

    Raises:
        InputError: parts are missing or have another shape; a vocabulary is called so where `module` shows
        that it is one.
    """
    wanted, held = flat(tensors), metadata.state_dict_metadata
    missing = [name for name in wanted if name not in held]
    problems = []
    for name, value in wanted.items():
        there = held.get(name)
        if (
            isinstance(value, torch.Tensor)
            and isinstance(there, TensorStorageMetadata)
            and there.size != value.shape
        ):
            problems.append(_other_shape(name, tuple(there.size), tuple(value.shape), module))
        elif isinstance(there, BytesStorageMetadata) and isinstance(value, torch.Tensor):
            problems.append(Problem(name, "is no tensor in the checkpoint"))
    groups = {name.partition(".")[0] for name in wanted}
    surplus = [
        name
        for name in held
        if name not in wanted and name.partition(".")[0] in groups and "param_groups" not in name
    ]
    problems += [Problem(name, "is not in the checkpoint") for name in missing[:5]]
    problems += [Problem(name, "is in the checkpoint and not in this model") for name in surplus[:5]]
    if problems:
        fix = Problem(
            "",
            f"{where} does not fit this recipe's model",
            "use the recipe that it was trained with, or start a new run with --run NAME",
        )
        raise InputError("the checkpoint is of another model", [*_first(problems), fix])


def _first(problems: list[Problem], most: int = 6) -> list[Problem]:
    rest = len(problems) - most
    return [*problems[:most], *([Problem("", f"and {rest} more")] if rest > 0 else [])]


def _other_shape(
    name: str, there: tuple[int, ...], here: tuple[int, ...], module: torch.nn.Module | None
) -> Problem:
    embeddings = (
        [key for key, part in module.named_modules() if isinstance(part, torch.nn.Embedding)]
        if module is not None
        else []
    )
    if any(f"{key}.weight" in name for key in embeddings) and there[1:] == here[1:]:
        what = f"the checkpoint's vocabulary has {there[0]} tokens, this run's {here[0]}"
        return Problem(
            name, what, "use the tokens that it was trained with (workload.data.tokens and vocabulary)"
        )
    return Problem(name, f"has shape {list(there)} in the checkpoint and {list(here)} here")
