"""The head of a model of transformers: what it computes between its last hidden states and its logits.

That is measured, not looked up by name: the model's own `forward` runs once with given hidden states in place
of those of its base model, and with given logits in place of those of its head. What it does with them is
then known, without a product of weights, or the model is not computed in chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainfleet.training.workloads.base import IGNORED
from trainfleet.training.workloads.chunked_loss import CHUNK, ChunkedCrossEntropy, LogitScale

Note = Callable[[str], Any]
_RANGES = (2.0**-10, 64.0, 2.0**20)
"""The largest of the given logits of each token: the first row shows the factor, the last one the cap."""


class _UnknownError(Exception):
    """Raised when a model computes its logits in a way that the chunked loss does not know."""


class _Input(NamedTuple):
    """An argument of the base model: the model's own argument of this name."""

    name: str


class _Head(NamedTuple):
    """How a model calls its base model, which is its decoder in some, and what it does with its logits."""

    base: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    scale: LogitScale


class HeadLoss(nn.Module):
    """The loss of a model with a head of transformers, without the logits of all tokens where possible.

    It has no parameters, and is called with the model, whose weights must be gathered.
    """

    def __init__(self, chunk: int = CHUNK, note: Note = lambda _: None) -> None:
        """`chunk`: how many tokens' logits exist at a time. `note`: called once with a sentence if all do."""
        super().__init__()
        self.chunked, self._note = ChunkedCrossEntropy(chunk), note
        self._heads: dict[tuple[str, ...], _Head | None] = {}

    def forward(
        self,
        inner: Any,
        given: Mapping[str, Tensor],
        targets: Tensor,
        *,
        count_correct: bool = False,
        shares: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The sum of the loss, and the number of correct predictions if requested.

        Args:
            inner: a model of transformers, with or without peft's adapters.
            given: its arguments by name.
            targets: [B, T], IGNORED where there is none.
            count_correct: whether to count correct predictions.
            shares: factors of the targets' losses [B, T].
        """
        model = _without_peft(inner)
        names = tuple(given)
        if names not in self._heads:
            try:
                self._heads[names] = _measure(model, given)
            except Exception as error:  # noqa: BLE001 - whatever a model raises for inputs that it does not expect
                self._heads[names] = None
                why = str(error) if isinstance(error, _UnknownError) else f"{type(error).__name__}: {error}"
                what = f"the loss is computed from the logits of all tokens, which takes more memory: {why}"
                self._note(what.splitlines()[0][:300])
        head = self._heads[names]
        if head is None:
            return _loss_of_all(inner, given, targets, count_correct, shares)
        hidden = head.base(
            *(_bound(each, given) for each in head.args),
            **{name: _bound(each, given) for name, each in head.kwargs.items()},
        )[0]
        layer = model.get_output_embeddings()
        loss: tuple[Tensor, Tensor | None] = self.chunked(
            hidden, layer.weight, targets, count_correct, bias=layer.bias, scale=head.scale, shares=shares
        )
        return loss


def _loss_of_all(
    inner: Any, given: Mapping[str, Tensor], targets: Tensor, count_correct: bool, shares: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    logits = inner(**given, use_cache=False).logits
    values = logits.float().flatten(0, 1)
    if shares is None:
        loss = F.cross_entropy(values, targets.flatten(), reduction="sum", ignore_index=IGNORED)
    else:
        losses = F.cross_entropy(values, targets.flatten(), reduction="none", ignore_index=IGNORED)
        loss = (losses * shares.flatten()).sum()
    return loss, (logits.argmax(dim=-1) == targets).sum() if count_correct else None


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves its own decorator untyped
@torch.no_grad()
def _measure(model: Any, given: Mapping[str, Tensor]) -> _Head:
    """How the model calls its base model, and what it does with logits.

    Raises:
        _UnknownError: something that `ChunkedCrossEntropy` does not do.
    """
    for base in (model.base_model, model.get_decoder()):
        if base is not None and base is not model and (found := _measured(model, base, given)) is not None:
            return found
    raise _UnknownError(f"{type(model).__name__} does not call its base model once")


def _measured(model: Any, base: nn.Module, given: Mapping[str, Tensor]) -> _Head | None:
    """None if the model does not call this module once. Raises as `_measure`."""
    layer = model.get_output_embeddings()
    if layer is None:
        raise _UnknownError(f"{type(model).__name__} has no head")
    if isinstance(layer, FSDPModule) or isinstance(base, FSDPModule):
        raise _UnknownError("its head or its base model is sharded on its own (sharding.blocks)")
    if type(layer) is not nn.Linear:
        raise _UnknownError(f"its head is a {type(layer).__name__}, such as one with adapters")
    if isinstance(layer.weight, DTensor):
        raise _UnknownError("the weight of its head is a shard")
    size, width = layer.weight.shape
    device = layer.weight.device
    hidden = (torch.arange(len(_RANGES) * width, device=device) % 101 / 64).to(layer.weight.dtype)
    hidden = hidden.view(1, len(_RANGES), width)
    logits = torch.linspace(-1, 1, size, device=device) * torch.tensor(_RANGES, device=device)[:, None]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    states: list[Tensor] = []

    def base_forward(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        return _Outputs((hidden,))

    def layer_forward(states_: Tensor) -> Tensor:
        states.append(states_)
        return logits[None]

    with _replaced(base, base_forward), _replaced(layer, layer_forward), _training(model):
        found = model(**given, use_cache=False).logits
    if len(calls) != 1:
        return None
    if len(states) != 1 or not _equal(states[0], hidden):
        raise _UnknownError(f"{type(model).__name__} changes the hidden states before its head")
    args, kwargs = calls[0]
    return _Head(
        base,
        tuple(_unbound(each, given) for each in args),
        {name: _unbound(each, given) for name, each in kwargs.items()},
        _scale_of(logits, found[0].float(), type(model).__name__),
    )


def _scale_of(logits: Tensor, found: Tensor, name: str) -> LogitScale:
    """What a model has done with logits [R, V], whose largest values are _RANGES."""
    unknown = _UnknownError(f"{name} changes its logits in another way than by a factor and a cap")
    if found.shape != logits.shape:
        raise unknown
    factor = float(found[0].max()) / _RANGES[0]
    factor = 1.0 if abs(factor - 1.0) < 1e-6 else factor
    largest = float(found[-1].max())
    if not factor > 0 or not largest > 0:
        raise unknown
    cap = None if largest > 0.5 * factor * _RANGES[-1] else largest
    expected = logits * factor
    if cap is not None:
        expected = (expected / cap).tanh() * cap
    if not torch.allclose(found, expected, rtol=1e-4, atol=1e-7):
        raise unknown
    return LogitScale(factor, cap)


class _Outputs(tuple[Tensor, ...]):
    """What a base model returns: hidden states, and None for everything else."""

    __slots__ = ()

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def _replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Call `forward` instead of the module's."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """In training mode, so that dropout before the head is seen; without autocast."""
    modes = {each: each.training for each in model.modules()}
    device = next(model.parameters()).device
    cuda = [device] if device.type == "cuda" else []
    model.train()
    try:
        with torch.random.fork_rng(devices=cuda), torch.autocast(device.type, enabled=False):
            yield
    finally:
        for each, mode in modes.items():
            each.training = mode


def _equal(found: Tensor, hidden: Tensor) -> bool:
    return found.shape == hidden.shape and torch.equal(found, hidden)


def _unbound(value: Any, given: Mapping[str, Tensor]) -> Any:
    for name, each in given.items():
        if value is each:
            return _Input(name)
    if isinstance(value, Tensor):
        raise _UnknownError("its base model gets tensors that are computed from the inputs")
    return value


def _bound(value: Any, given: Mapping[str, Tensor]) -> Any:
    return given[value.name] if isinstance(value, _Input) else value


def _without_peft(inner: Any) -> Any:
    """The model in a model of peft, whose adapters are in its layers."""
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner
