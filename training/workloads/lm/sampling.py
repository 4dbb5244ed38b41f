"""Generates text with the GPT of this package, token by token.

Prompts of different lengths share a batch, padded at the end, which a causal model ignores. A text longer
than the context is read through a sliding window.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def generate(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    *,
    context: int,
    temperature: float,
    top_k: int,
    end: int,
) -> list[list[int]]:
    """Up to `max_tokens` new tokens for each prompt.

    Args:
        model: tokens [B, T] to logits [B, T, V].
        prompts: tokens of each prompt, at least one.
        max_tokens: maximum number of new tokens.
        context: maximum tokens that the model reads.
        temperature: 0 is greedy; 1 samples from the model's distribution.
        top_k: sample from the k most likely tokens; 0 for all.
        end: the token that ends a text.
    """
    texts = [list(each) for each in prompts]
    device = next(model.parameters()).device
    active = list(range(len(texts)))
    for _ in range(max_tokens):
        windows = [texts[number][-context:] for number in active]
        longest = max(len(each) for each in windows)
        tokens = torch.tensor([each + [end] * (longest - len(each)) for each in windows], device=device)
        places = torch.tensor([len(each) - 1 for each in windows], device=device)
        logits = model(tokens)[torch.arange(len(windows), device=device), places].float()
        for number, token in zip(active, sample(logits, temperature, top_k).tolist(), strict=True):
            texts[number].append(token)
        active = [number for number in active if texts[number][-1] != end]
        if not active:
            break
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


def sample(logits: Tensor, temperature: float, top_k: int) -> Tensor:
    """A token [B] for each row of logits [B, V]."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    if top_k:
        least = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    return torch.multinomial((logits / temperature).softmax(dim=-1), 1)[:, 0]
