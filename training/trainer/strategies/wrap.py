"""A model's blocks: the unit of sharding, recomputation and compilation.

A block is a member of an `nn.ModuleList` or `nn.Sequential` of one class, such as a transformer's layers.
Modules
are modified in place and never wrapped, because checkpoints depend on the names of the parameters.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainfleet.errors import InputError, Problem
from trainfleet.suggestions import did_you_mean
from trainfleet.training.workloads.chunked_loss import ChunkedCrossEntropy

Recompute = Literal["none", "selective", "full"]


def find_blocks(model: nn.Module, names: Sequence[str] = ()) -> list[nn.Module]:
    """The outermost blocks in the model's order: of the classes `names`, or those that repeat in a list.

    Raises:
        InputError: the model has no module of a class in `names`.
    """
    if names:
        classes = {type(each).__name__ for each in model.modules()}
        problems = [
            Problem("sharding.blocks", f"the model has no `{name}`", did_you_mean(name, sorted(classes)))
            for name in names
            if name not in classes
        ]
        if problems:
            raise InputError("the model has no such blocks", problems)
        return _outermost(model, lambda _, child: type(child).__name__ in names)
    return _outermost(model, _repeats)


def _outermost(parent: nn.Module, is_block: Any) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in parent.children():
        found += [child] if is_block(parent, child) else _outermost(child, is_block)
    return found


def _repeats(parent: nn.Module, child: nn.Module) -> bool:
    """Whether `child` is of the class that its list mostly consists of, and not a single layer."""
    if not isinstance(parent, nn.ModuleList | nn.Sequential) or not any(True for _ in child.children()):
        return False
    ((kind, count),) = Counter(type(each) for each in parent.children()).most_common(1)
    alone = count == 1 and len(parent) == 1 and isinstance(parent, nn.ModuleList)
    return type(child) is kind and (count > 1 or alone) and any(True for _ in child.parameters())


def recompute(blocks: Sequence[nn.Module], what: Recompute) -> None:
    """Keep fewer activations for the backward pass: `selective` keeps the results of matrix products and
    attention, `full` only the blocks' inputs.
    """
    if what == "none":
        return
    more: dict[str, Any] = {}
    if what == "selective":
        more = {"context_fn": functools.partial(create_selective_checkpoint_contexts, _policy)}
    for block in blocks:
        block.forward = _recomputed(block.forward, more)


def _recomputed(forward: Callable[..., Any], more: Mapping[str, Any]) -> Callable[..., Any]:
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **more, **kwargs)

    return recomputed


SAVED = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_scaled_dot_product_", "convolution")
"""Operations that are expensive to recompute, by the start of their name."""


def _policy(_context: Any, operation: Any, *_arguments: Any, **_named: Any) -> CheckpointPolicy:
    name = str(getattr(operation, "overloadpacket", operation)).removeprefix("aten.")
    expensive = name in SAVED or name.startswith(tuple(each for each in SAVED if each.endswith("_")))
    return CheckpointPolicy.MUST_SAVE if expensive else CheckpointPolicy.PREFER_RECOMPUTE


BACKEND = "inductor"


def compile_blocks(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Compile each block and the chunked loss in place (equal blocks share the code), or a model without
    blocks as a whole.

    NOTE: compiles `forward`, with the recomputation in it. `block.compile()` compiles `__call__`, in which
    FSDP's hooks break the graph; then recomputation, which Dynamo never enters from such a frame, leaves the
    whole block uncompiled.
    """
    torch._dynamo.config.cache_size_limit = max(torch._dynamo.config.cache_size_limit, 64)
    if blocks:
        # DDP's graph splitting rejects recomputation. Blocks are graphs of their own, so that gradients are
        # reduced during the backward pass without it.
        torch._dynamo.config.optimize_ddp = False
    for each in blocks or [model]:
        each.forward = torch.compile(each.forward, backend=BACKEND)
    for loss in model.modules():
        if isinstance(loss, ChunkedCrossEntropy):
            loss.compute = torch.compile(loss.compute, backend=BACKEND)


class CompiledGraphs:
    """What this process has compiled since this object was made."""

    def __init__(self) -> None:
        self._before = self._counts()

    def describe(self) -> tuple[str, str]:
        """A kind of event (`compiled`, or `not_compiled` if there is no graph), and a sentence."""
        graphs, breaks = (now - then for now, then in zip(self._counts(), self._before, strict=True))
        if not graphs:
            return "not_compiled", "compile=true has compiled nothing: the model runs as without it"
        from torch._dynamo.utils import counters

        reasons = [f"{why} ({count})" for why, count in counters["graph_break"].most_common(3)]
        broken = f", {breaks} graph breaks: {'; '.join(reasons)}" if breaks else ", no graph break"
        return "compiled", f"{graphs} graph{'s' if graphs > 1 else ''}{broken}"

    @staticmethod
    def _counts() -> tuple[int, int]:
        from torch._dynamo.utils import counters

        return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
