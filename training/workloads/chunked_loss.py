"""The cross entropy of a linear head over a large vocabulary, computed for some tokens at a time.

The logits of a whole batch are a language model's largest tensor: 6.6 GB in fp32 for 32 x 1,024 tokens of a
vocabulary of 50,304.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainfleet.training.workloads.base import IGNORED

CHUNK = 4096
"""Tokens whose logits exist at a time, where a recipe does not say it."""
Needed = tuple[bool, bool, bool]
"""Whether the gradients of hidden states, weight and bias are needed."""
ChunkResult = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Summed loss, number of correct predictions, and the gradients of hidden states, weight and bias."""


class LogitScale(NamedTuple):
    """What an architecture does with its logits: they are multiplied by `factor`, and if there is a `cap`,
    they become cap·tanh(logits / cap).
    """

    factor: float = 1.0
    cap: float | None = None


class ChunkedCrossEntropy(nn.Module):
    """Hidden states [..., D], a head's weight [V, D] and targets [...] to the summed loss in fp32.

    The gradients of a chunk are computed in the forward pass, while its logits exist, and only scaled in the
    backward pass: no product is computed twice. Between the passes, it keeps the gradients of the hidden
    states and of the weight. It has no parameters. With `compile`, `compute` is compiled.

    NOTE: with fsdp, the weight must belong to the module that calls this one, which has gathered it.
    """

    def __init__(self, chunk: int = CHUNK) -> None:
        """`chunk`: how many tokens' logits exist at a time."""
        super().__init__()
        self.chunk = chunk
        self.compute: Callable[..., ChunkResult] = chunk_loss

    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        count_correct: bool = False,
        *,
        bias: Tensor | None = None,
        scale: LogitScale = LogitScale(),
        shares: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The sum over the targets and, if requested, for how many the head predicts the target.

        The products have the type of autocast, if it is on, and gradients are summed over chunks in fp32.

        Args:
            hidden: states before the head [..., D].
            weight: of the head [V, D].
            targets: [...], IGNORED where there is none.
            count_correct: whether to count correct predictions.
            bias: of the head [V].
            scale: what the architecture does with the logits.
            shares: factors of the targets' losses [...], in the type of the loss.
        """
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else hidden.dtype
        flat = None if shares is None else shares.flatten()
        with torch.autocast(device, enabled=False):
            loss, correct = _Loss.apply(
                hidden.flatten(0, -2),
                weight,
                bias,
                targets.flatten(),
                flat,
                self,
                dtype,
                count_correct,
                scale,
            )
        return loss, correct


def chunk_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    gradients: Needed,
    count_correct: bool,
    *,
    bias: Tensor | None = None,
    shares: Tensor | None = None,
    factor: float = 1.0,
    cap: float | None = None,
) -> ChunkResult:
    """The loss of one chunk of N tokens.

    Args:
        hidden: states [N, D].
        weight: of the head [V, D].
        targets: [N], IGNORED where there is none.
        gradients: which are needed.
        count_correct: whether to count correct predictions.
        bias: of the head [V].
        shares: factors of the targets' losses [N].
        factor: as in `LogitScale`.
        cap: as in `LogitScale`.
    """
    logits = F.linear(hidden, weight, bias)
    values = logits.to(torch.promote_types(logits.dtype, torch.float32))
    slope: Tensor | None = None
    if factor != 1.0:
        values = values * factor
    if cap is not None:
        part = (values / cap).tanh()
        values, slope = part * cap, 1.0 - part * part
    counted = targets != IGNORED
    places = targets.where(counted, 0)[:, None]
    total = values.logsumexp(dim=-1, keepdim=True)
    losses = (total - values.gather(-1, places)).squeeze(-1)
    loss = (losses if shares is None else losses * shares).where(counted, 0.0).sum()
    correct = (logits.argmax(dim=-1) == targets).sum() if count_correct else None
    if not any(gradients):
        return loss, correct, None, None, None
    # A comparison instead of a scatter: compiled, one kernel then writes the gradient in the products' type.
    found = (values - total).exp()
    found = torch.where(torch.arange(len(weight), device=targets.device) == places, found - 1.0, found)
    if shares is not None:
        found = found * shares[:, None]
    if slope is not None:
        found = found * slope
    if factor != 1.0:
        found = found * factor
    found = found.where(counted[:, None], 0.0)
    of_bias = found.sum(dim=0) if gradients[2] else None
    found = found.to(logits.dtype)
    of_hidden = found @ weight if gradients[0] else None
    of_weight = found.T @ hidden if gradients[1] else None
    return loss, correct, of_hidden, of_weight, of_bias


class _Loss(torch.autograd.Function):
    """Sums chunks. Returns the loss and the number of correct predictions."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position only
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        shares: Tensor | None,
        module: ChunkedCrossEntropy,
        dtype: torch.dtype,
        count_correct: bool,
        scale: LogitScale,
    ) -> tuple[Tensor, Tensor | None]:
        exact = torch.promote_types(dtype, torch.float32)
        needed: Needed = (ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[2])
        matrix = weight.detach().to(dtype)
        more: dict[str, Any] = {"factor": scale.factor, "cap": scale.cap}
        if bias is not None:
            more["bias"] = bias.detach().to(dtype)
        loss = hidden.new_zeros((), dtype=exact)
        correct = targets.new_zeros(()) if count_correct else None
        of_hidden = torch.empty_like(hidden, dtype=dtype) if needed[0] else None
        of_weight: Tensor | None = None
        of_bias: Tensor | None = None
        for start in range(0, len(targets), module.chunk):
            rows = slice(start, start + module.chunk)
            if shares is not None:
                more["shares"] = shares[rows].detach()
            found = module.compute(
                hidden[rows].detach().to(dtype), matrix, targets[rows], needed, count_correct, **more
            )
            loss = loss + found[0]
            if correct is not None and found[1] is not None:
                correct = correct + found[1]
            if of_hidden is not None and found[2] is not None:
                of_hidden[rows] = found[2]
            if found[3] is not None:
                of_weight = found[3].to(exact) if of_weight is None else of_weight.add_(found[3])
            if found[4] is not None:
                of_bias = found[4] if of_bias is None else of_bias.add_(found[4])
        ctx.save_for_backward(of_hidden, of_weight, of_bias)
        ctx.dtypes = hidden.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype
        if correct is not None:
            ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        # In place: another copy of the weight's gradient may be gigabytes. Autograd rejects a second pass.
        found = (
            None if each is None else each.mul_(scale).to(dtype)
            for each, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return (*found, None, None, None, None, None, None)
