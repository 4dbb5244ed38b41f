"""The interface of a strategy: what the step loop and the checkpoints need of a distributed model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainfleet.training.trainer.frozen import frozen_names

StateDict = dict[str, dict[str, Any]]
"""`{"model": ..., "optimizer": ...}` by the names of the unwrapped model's parameters."""


class Strategy(ABC):
    """A model distributed over ranks.

    NOTE: `state_dict`, `load_state_dict`, `sync_buffers` and `clip_grad_norm` are collective: every rank must
    call them, in the same order.

    Attributes:
        module: the model with the parameters that the optimizer updates; they may be shards.
        parallel: the module to call in a training step.
        forward_is_collective: all ranks must run the same number of forward passes, in a validation too.
        parameters: number of parameters of the whole model.
        not_drawn: names of the tensors without initial values, which a checkpoint must overwrite.
        notes: what a user should know of how the model was built.
    """

    forward_is_collective = False
    not_drawn: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def __init__(self, module: nn.Module) -> None:
        # As after a validation: a pretrained model is loaded in evaluation mode, without dropout.
        self.module = module.train()
        self.parallel: nn.Module = module
        self.parameters = sum(each.numel() for each in module.parameters())

    @abstractmethod
    def warm_up(self, warmup_pass: Callable[[nn.Module], Any]) -> None:
        """Run passes that change nothing, if needed for all later ones to sum gradients in the same order."""

    @abstractmethod
    def grad_sync(self, last: bool) -> AbstractContextManager[Any]:
        """Context of a micro batch's forward and backward pass. Gradients are reduced in the last
        one only.
        """

    @abstractmethod
    def precision(self) -> AbstractContextManager[Any]:
        """Context of a forward pass: autocast to the recipe's precision, unless the model handles it."""

    def grad_sync_seconds(self) -> float | None:
        """Seconds that a recent step waited for the gradients of other ranks; None if not measured."""
        return None

    def backward_seconds(self) -> float | None:
        """Seconds that the backward pass of a recent step computed on this rank, without waiting for others;
        None if not measured.
        """
        return None

    def clip_grad_norm(self, limit: float) -> torch.Tensor:
        """Scale the gradient to a norm of at most `limit`; returns the whole gradient's norm before, the same
        on
        all ranks.
        """
        parameters = [each for each in self.module.parameters() if each.grad is not None]
        norm = nn.utils.get_total_norm(
            [each.grad for each in parameters if each.grad is not None], foreach=True
        )
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        nn.utils.clip_grads_with_norm_(parameters, limit, norm, foreach=True)
        return norm

    def sync_buffers(self) -> None:
        """Give every rank the buffers of rank 0, such as the running means of BatchNorm, which each rank
        updates by its own micro batches. DDP does the same before the next step.
        """
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        for each in self.module.buffers():
            if any(size > 1 and stride == 0 for size, stride in zip(each.shape, each.stride(), strict=True)):
                continue  # an expanded view, which a step cannot change
            whole = each.detach().contiguous()
            dist.broadcast(whole.reshape(-1).view(torch.uint8), src=0)  # bytes: gloo and NCCL lack some types
            if not each.is_contiguous():
                each.copy_(whole)

    def state_dict(
        self, optimizer: Optimizer, whole: bool = False, *, trained_only: bool = False
    ) -> StateDict:
        """The model's and the optimizer's state, for a checkpoint to write or to load into.

        These are the tensors themselves with ddp, and DTensors with fsdp and hsdp. `whole` gathers everything
        on
        rank 0 as plain CPU tensors; the other ranks get empty dictionaries. Before the first step the
        optimizer's
        state is a placeholder to load into. `trained_only` leaves out the weights that are not trained.
        """
        # NOTE: each rank writes a share of the replicas, and a checkpoint must have the buffers of one rank.
        self.sync_buffers()
        model, optimizer_state = get_state_dict(
            self.module, optimizer, options=StateDictOptions(full_state_dict=whole, cpu_offload=whole)
        )
        if trained_only:
            left_out = frozen_names(self.module)
            model = {name: value for name, value in model.items() if name not in left_out}
        return {"model": model, "optimizer": dict(optimizer_state)}

    def load_state_dict(
        self, optimizer: Optimizer, state: Mapping[str, Mapping[str, Any]], whole: bool = False
    ) -> None:
        """Load what `state_dict` returned; with `whole`, plain whole tensors that every rank has. Weights
        that are not trained may be absent.

        Raises:
            RuntimeError: a trained weight is absent, or one is not of this model.
        """
        model, frozen = dict(state["model"]), frozen_names(self.module)
        missing, unknown = set_model_state_dict(
            self.module, model, options=StateDictOptions(full_state_dict=whole, strict=False)
        )
        if wrong := [*(name for name in missing if name not in frozen), *unknown]:
            raise RuntimeError(f"the state and the model differ in {', '.join(wrong)}")
        set_optimizer_state_dict(
            self.module,
            optimizer,
            dict(state["optimizer"]),
            options=StateDictOptions(full_state_dict=whole),
        )
