"""What the step loop and the checkpoints ask of a model that is spread over ranks, whatever the strategy.

`Replicated` (ddp) and `Sharded` (fsdp, hsdp) are the two ways. Easy to get wrong: `tensors` and `clip` hold
collectives, so
every rank calls them, in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

Tensors = dict[str, dict[str, Any]]
"""`{"model": ..., "optimizer": ...}` by the parameters' own names, whatever wraps the model."""


class Strategy(ABC):
    """A model spread over ranks.

    Attributes:
        module: the model, whose parameters the optimizer steps; its parameters may be shards.
        parallel: what is called in a training step.
        together: a forward pass is collective, so all ranks must make equally many, in a validation too.
        parameters: how many numbers the whole model has.
    """

    together = False

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parallel: nn.Module = module
        self.parameters = sum(each.numel() for each in module.parameters())

    @abstractmethod
    def settle(self, backward: Callable[[nn.Module], Any]) -> None:
        """Let passes go by that change nothing, if any are needed for all later ones to sum gradients in the
        same order.
        """

    @abstractmethod
    def turn(self, last: bool) -> AbstractContextManager[Any]:
        """Around the forward and backward pass of a micro batch: gradients are exchanged in the last one of a
        step only.
        """

    @abstractmethod
    def precision(self) -> AbstractContextManager[Any]:
        """Around a forward pass: the recipe's precision, where the model has not taken it on itself."""

    def exchange_seconds(self) -> float | None:
        """How long one recent step waited for gradients of other ranks once its own were there; None where
        nobody counts that.
        """
        return None

    def clip(self, limit: float) -> torch.Tensor:
        """Scale the gradient down to `limit` where it is longer; returns the whole gradient's norm before
        that, the same on all ranks.
        """
        parameters = [each for each in self.module.parameters() if each.grad is not None]
        norm = nn.utils.get_total_norm(
            [each.grad for each in parameters if each.grad is not None], foreach=True
        )
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        nn.utils.clip_grads_with_norm_(parameters, limit, norm, foreach=True)
        return norm

    def tensors(self, optimizer: Optimizer, whole: bool = False) -> Tensors:
        """The model's and the optimizer's state, for a checkpoint to write, or to read into.

        Under ddp these are the tensors themselves, under fsdp and hsdp DTensors that know their place in the
        whole. `whole` gathers
        everything on rank 0 as plain tensors on the CPU, empty elsewhere. Before the first step the
        optimizer's state is made up,
        to be read into, and must not be trained on.
        """
        model, state = get_state_dict(
            self.module, optimizer, options=StateDictOptions(full_state_dict=whole, cpu_offload=whole)
        )
        return {"model": model, "optimizer": dict(state)}

    def load_tensors(
        self, optimizer: Optimizer, tensors: Mapping[str, Mapping[str, Any]], whole: bool = False
    ) -> None:
        """Take over what `tensors` gave; with `whole`, plain whole tensors that every rank holds."""
        set_state_dict(
            self.module,
            optimizer,
            model_state_dict=dict(tensors["model"]),
            optim_state_dict=dict(tensors["optimizer"]),
            options=StateDictOptions(full_state_dict=whole),
        )
