"""Continuing a text with the GPT of this package, token by token. Used by the `lm` workload's `predict`.

Easy to get wrong: prompts of unlike length share a batch by what stands behind them, which a causal model
never looks at; and a
text longer than the model's context is seen through a window that moves along.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def continued(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    most: int,
    *,
    context: int,
    temperature: float,
    top_k: int,
    end: int,
) -> list[list[int]]:
    """Up to `most` further tokens of each prompt; a text ends at the token `end`.

    Args:
        temperature: 0 takes the likeliest token each time; 1 samples as the model says.
        top_k: how many of the likeliest are sampled from; 0: all.
    """
    texts = [list(each) for each in prompts]
    device = next(model.parameters()).device
    writing = list(range(len(texts)))
    for _ in range(most):
        windows = [texts[number][-context:] for number in writing]
        longest = max(len(each) for each in windows)
        tokens = torch.tensor([each + [end] * (longest - len(each)) for each in windows], device=device)
        places = torch.tensor([len(each) - 1 for each in windows], device=device)
        logits = model(tokens)[torch.arange(len(windows), device=device), places].float()
        for number, token in zip(writing, chosen(logits, temperature, top_k).tolist(), strict=True):
            texts[number].append(token)
        writing = [number for number in writing if texts[number][-1] != end]
        if not writing:
            break
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


def chosen(logits: Tensor, temperature: float, top_k: int) -> Tensor:
    """A token [B] for each row of logits [B, V]."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    if top_k:
        least = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    return torch.multinomial((logits / temperature).softmax(dim=-1), 1)[:, 0]
