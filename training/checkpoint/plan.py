"""Which part of a state each rank writes, and its snapshot in host memory, by torch's checkpoint planner.

Replicas are divided among ranks, so with DDP each rank copies and writes only its share.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.tensor import DTensor

from trainfleet.errors import InputError, Problem
from trainfleet.training.checkpoint.host_buffers import host_buffers
from trainfleet.training.checkpoint.host_copies import Copy, HostCopies
from trainfleet.training.runtime.collectives import Ranks

Staged = list[tuple[WriteItem, torch.Tensor | bytes]]
"""The items that a rank writes, with their data in host memory."""


@dataclass(frozen=True)
class Plan:
    """One rank's items for states of a `shape`; `metadata` describes the whole state, on rank 0 only."""

    items: list[WriteItem]
    metadata: Metadata | None
    shape: list[tuple[Any, ...]]


class Staging:
    """Copies a state to host memory. Plans and allocates again only if names, sizes or types changed.

    Attributes:
        plan: of the latest state.
        copies: what is copied from a GPU.
        changed_in_forward: names of the tensors that a forward pass changes in place.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.plan: Plan | None = None
        self.copies = HostCopies()
        self.changed_in_forward: Collection[str] = ()
        self._buffers: dict[Any, torch.Tensor] = {}
        self._allocating: threading.Thread | None = None

    def prepare(self, tensors: Mapping[str, Any]) -> None:
        """Plan, and allocate the buffers in a thread, so that the first snapshot takes no longer than later
        ones. Collective.
        """
        planner = self._planner(tensors)
        assert self.plan is not None
        missing = {
            item.index: data
            for item in self.plan.items
            if item.index not in self._buffers
            and not isinstance(data := planner.resolve_data(item), io.BytesIO)
        }
        self._allocating = threading.Thread(
            target=self._allocate, args=(missing,), daemon=True, name="checkpoint-buffers"
        )
        self._allocating.start()

    def copy(self, tensors: Mapping[str, Any]) -> Staged:
        """Snapshot of this rank's share of the state; what is on a GPU is complete after `copies.wait()`.
        Collective.

        NOTE: the next call overwrites the buffers, so a pending save must finish before.
        """
        planner = self._planner(tensors)
        assert self.plan is not None
        staged: Staged = []
        on_gpu: list[Copy] = []
        resolved = [(item, planner.resolve_data(item)) for item in self.plan.items]
        self._buffers |= host_buffers(
            {
                item.index: data
                for item, data in resolved
                if item.index not in self._buffers and not isinstance(data, io.BytesIO)
            }
        )
        for item, found in resolved:
            if isinstance(found, io.BytesIO):
                staged.append((item, found.getvalue()))
                continue
            data, buffer = found.detach(), self._buffers[item.index]
            if data.is_cuda:
                on_gpu.append(Copy(buffer, data, item.index.fqn in self.changed_in_forward))
            else:
                buffer.copy_(data)
            staged.append((item, buffer))
        self.copies.start(on_gpu)
        return staged

    def _planner(self, tensors: Mapping[str, Any]) -> DefaultSavePlanner:
        """The planner of a state that `plan` fits."""
        if self._allocating is not None:
            self._allocating.join()
            self._allocating = None
        planner = DefaultSavePlanner()
        planner.set_up_planner(dict(tensors), is_coordinator=self._ranks.rank == 0)
        shape = shape_of(planner.state_dict)
        if self._ranks.any(self.plan is None or self.plan.shape != shape):
            self.plan = _agree(planner, shape, self._ranks)
            self._buffers.clear()
        return planner

    def _allocate(self, missing: Mapping[Any, torch.Tensor]) -> None:
        for index, buffer in host_buffers(missing).items():
            self._buffers[index] = buffer.zero_()  # written to, so that it has pages


def shape_of(flat: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Names, sizes, types and placements of a flat state; a plan fits states with an equal shape."""
    return [
        (name, tuple(value.shape), value.dtype, value.placements if isinstance(value, DTensor) else None)
        if isinstance(value, torch.Tensor)
        else (name,)
        for name, value in flat.items()
    ]


def _agree(planner: DefaultSavePlanner, shape: list[tuple[Any, ...]], ranks: Ranks) -> Plan:
    """Rank 0 assigns the items, so that replicated ones are written once."""
    gathered: list[SavePlan] = ranks.gather(planner.create_local_plan())
    metadata: Metadata | None = None
    shares: list[SavePlan] | None = None
    if ranks.rank == 0:
        shares, metadata = planner.create_global_plan(gathered)
    mine = ranks.scatter(shares)
    return Plan(mine.items, metadata, shape)


def flat(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A nested state by the names of its parts in a checkpoint."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(tensors))
    return dict(planner.state_dict)


def require_fit(
    metadata: Metadata, tensors: Mapping[str, Any], where: str, module: torch.nn.Module | None = None
) -> None:
    """Require that a checkpoint matches `tensors`.

    Raises:
        InputError: parts are missing or have another shape. With `module`, a different vocabulary is named.
    """
    expected, saved = flat(tensors), metadata.state_dict_metadata
    missing = [name for name in expected if name not in saved]
    problems = []
    for name, value in expected.items():
        entry = saved.get(name)
        if (
            isinstance(value, torch.Tensor)
            and isinstance(entry, TensorStorageMetadata)
            and entry.size != value.shape
        ):
            problems.append(_other_shape(name, tuple(entry.size), tuple(value.shape), module))
        elif isinstance(entry, BytesStorageMetadata) and isinstance(value, torch.Tensor):
            problems.append(Problem(name, "is not a tensor in the checkpoint"))
    groups = {name.partition(".")[0] for name in expected}
    surplus = [
        name
        for name in saved
        if name not in expected and name.partition(".")[0] in groups and "param_groups" not in name
    ]
    problems += [Problem(name, "is not in the checkpoint") for name in missing[:5]]
    problems += [Problem(name, "is in the checkpoint but not in this model") for name in surplus[:5]]
    if problems:
        fix = Problem(
            "",
            f"{where} does not match this recipe's model",
            "use its own recipe, or start a new run with --run NAME",
        )
        raise InputError("the checkpoint is of another model", [*_first(problems), fix])


def _first(problems: list[Problem], most: int = 6) -> list[Problem]:
    rest = len(problems) - most
    return [*problems[:most], *([Problem("", f"and {rest} more")] if rest > 0 else [])]


def _other_shape(
    name: str, saved: tuple[int, ...], expected: tuple[int, ...], module: torch.nn.Module | None
) -> Problem:
    embeddings = (
        [key for key, part in module.named_modules() if isinstance(part, torch.nn.Embedding)]
        if module is not None
        else []
    )
    if any(f"{key}.weight" in name for key in embeddings) and saved[1:] == expected[1:]:
        what = f"the checkpoint's vocabulary has {saved[0]} tokens, this run's has {expected[0]}"
        return Problem(name, what, "use its tokens (workload.data.tokens and vocabulary)")
    return Problem(name, f"has shape {list(saved)} in the checkpoint and {list(expected)} here")
