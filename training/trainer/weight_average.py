"""An exponential moving average of the weights, which is validated, tested and published in their place.

Each rank has the average of its shards. torch.optim.swa_utils.AveragedModel is not used, because it copies
the module, and with it the hooks and process groups of FSDP2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainfleet.training.recipe.schema import Ema


class WeightAverage:
    """The average of a module's trained weights, or nothing without a decay. Buffers are not averaged.

    Attributes:
        tensors: by the parameter's name, like the weights: tensors, or DTensors with fsdp and hsdp.
        before_exchange: called before weights and average are exchanged in place.
    """

    def __init__(self, settings: Ema, module: nn.Module) -> None:
        self._decay, self._module = settings.decay, module
        self.before_exchange: Callable[[], None] = lambda: None
        self._weights = {name: each for name, each in module.named_parameters() if each.requires_grad}
        self.tensors: dict[str, torch.Tensor] = {}
        if self._decay is not None:
            self.tensors = {name: each.detach().clone() for name, each in self._weights.items()}

    @property
    def enabled(self) -> bool:
        """Whether the recipe asks for an average."""
        return self._decay is not None

    @torch.no_grad()
    def reset(self) -> None:
        """Start again from the current weights."""
        for name, each in self.tensors.items():
            each.copy_(self._weights[name])

    @torch.no_grad()
    def update(self, step: int, valid: torch.Tensor | None = None) -> None:
        """Add the weights after an optimizer step, without waiting for the device.

        Args:
            step: its number, from 1.
            valid: whether the device has made the step: a scalar on it; None if it has.
        """
        if self._decay is None:
            return
        share = 1.0 - decay_of(self._decay, step)
        mine, weights = self._local()
        if valid is None:
            torch._foreach_lerp_(mine, weights, share)
            return
        shares = valid.to(torch.float32) * share
        torch._foreach_lerp_(mine, weights, [shares.to(each.device, each.dtype) for each in mine])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the module has the averaged weights. They must not be trained in it."""
        if not self.tensors:
            yield
            return
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        """Exchange weights and average in place, one tensor at a time."""
        self.before_exchange()
        for mine, weight in zip(*self._local(), strict=True):
            kept = weight.clone()
            weight.copy_(mine)
            mine.copy_(kept)
        # NOTE: a forward pass without gradients leaves the root gathered, and the next would use old weights.
        for module in self._module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _local(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """This rank's shards of the average and of the weights."""
        pairs = [(each, self._weights[name].detach()) for name, each in self.tensors.items()]
        return [_shard(mine) for mine, _ in pairs], [_shard(weight) for _, weight in pairs]


def decay_of(decay: float, step: int) -> float:
    """The decay of a step: smaller at first, so that the initial weights do not dominate the average.

    Source: `num_updates` of tf.train.ExponentialMovingAverage.
    """
    return min(decay, (1 + step) / (10 + step))


def _shard(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
