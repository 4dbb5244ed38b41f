"""Muon on matrices that are sharded over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate


class ShardedMuon(torch.optim.Muon):
    """torch's Muon, for parameters that are DTensors.

    The momentum is sharded as the parameters are. Each update is gathered in bf16, in which Muon
    orthogonalises, one matrix at a time; every rank orthogonalises it and keeps its shard. So a rank receives
    2 bytes per parameter and step, and an update is that of an unsharded matrix.

    NOTE: a step is collective: all ranks must have gradients of the same matrices.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        if closure is not None:
            raise ValueError("a closure is not supported")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient, state = parameter.grad, self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(gradient)
                momentum = state["momentum_buffer"]
                momentum.lerp_(gradient, 1 - group["momentum"])
                update = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
                change = _change(update.to(torch.bfloat16).full_tensor(), group)
                mesh = update.device_mesh
                whole = DTensor.from_local(change, mesh, [Replicate()] * mesh.ndim)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(whole.redistribute(placements=parameter.placements))


def _change(update: torch.Tensor, group: Mapping[str, Any]) -> torch.Tensor:
    """What torch's Muon adds to a matrix for this update: its first step on zeros, without momentum."""
    whole = torch.zeros_like(update, dtype=torch.float32).requires_grad_()
    whole.grad = update.float()
    kept = ("lr", "ns_coefficients", "eps", "ns_steps", "adjust_lr_fn")
    once = torch.optim.Muon(
        [whole], weight_decay=0.0, momentum=0.0, nesterov=False, **{key: group[key] for key in kept}
    )
    once.step()  # type: ignore[no-untyped-call]  # torch is partly typed
    return whole.detach()
