"""Generates text token by token, with the GPT of this package, and samples for any language model.

Prompts of different lengths share a batch, padded at the end, which a causal model ignores. A text longer
than the context is read through a sliding window, without the cache, because all positions change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainfleet.training.workloads.lm.gpt import Gpt
from trainfleet.training.workloads.lm.kv_cache import KvCache
from trainfleet.training.workloads.lm.settings import SamplingSettings

Hear = Callable[[int, int], object]
"""Called with the number of a row and its next token."""


class RowSampler:
    """Samples for rows with settings and a random generator each, so that a row's tokens do not depend on
    the others in its batch.
    """

    def __init__(self, options: Sequence[SamplingSettings]) -> None:
        self._options = options
        self._random = [torch.Generator().manual_seed(each.seed) for each in options]

    def __call__(self, logits: Tensor, rows: Sequence[int]) -> list[int]:
        """The next token of each of these rows, whose logits are [B, V]."""
        options = [self._options[row] for row in rows]
        draws = torch.stack([torch.rand((), generator=self._random[row]) for row in rows])
        return sample(logits.float(), options, draws.to(logits.device)).tolist()


def generate(
    model: Gpt,
    prompts: Sequence[Sequence[int]],
    options: Sequence[SamplingSettings],
    *,
    context: int,
    end: int,
    hear: Hear = lambda *_: None,
    use_cache: bool = True,
) -> list[list[int]]:
    """The new tokens of each prompt.

    Args:
        model: the GPT.
        prompts: tokens of each prompt, at least one.
        options: of each prompt.
        context: maximum tokens that the model reads.
        end: the token that ends a text.
        hear: called with each new token.
        use_cache: keep the keys and values of the tokens that were read.
    """
    device = next(model.parameters()).device
    texts, rows = [list(each) for each in prompts], _Rows(model, context, end, device)
    sampler = RowSampler(options)
    most = [len(prompt) + each.max_tokens for prompt, each in zip(prompts, options, strict=True)]
    short = [number for number, text in enumerate(texts) if len(text) <= context]
    if use_cache and short:
        rows.start(short, min(context, max(most[number] for number in short)))
    active = list(range(len(texts)))
    while active:
        active, logits = rows.logits(texts, active)
        for number, token in zip(active, sampler(logits, active), strict=True):
            texts[number].append(token)
            hear(number, token)
        active = [
            number for number in active if texts[number][-1] != end and len(texts[number]) < most[number]
        ]
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


class _Rows:
    """Reads texts with the model: those in the cache by their last token, others as a whole window."""

    def __init__(self, model: Gpt, context: int, end: int, device: torch.device) -> None:
        self._model, self._context, self._end, self._device = model, context, end, device
        self._cache: KvCache | None = None
        self._cached: list[int] = []

    def start(self, numbers: list[int], capacity: int) -> None:
        """Cache these texts from the next call on."""
        self._cache, self._cached = KvCache(len(self._model.blocks), capacity, self._device), numbers

    def logits(self, texts: Sequence[Sequence[int]], active: Sequence[int]) -> tuple[list[int], Tensor]:
        """The active texts in another order, and the logits [B, V] of the token after each."""
        cached = [each for each in self._cached if each in active and len(texts[each]) <= self._context]
        others = [each for each in active if each not in cached]
        found = []
        if cached:
            found.append(self._from_cache(texts, cached))
        if others:
            found.append(self._whole([texts[each][-self._context :] for each in others], None))
        return cached + others, torch.cat(found)

    def _from_cache(self, texts: Sequence[Sequence[int]], numbers: list[int]) -> Tensor:
        cache = self._cache
        assert cache is not None
        if not cache.longest:
            logits = self._whole([texts[each] for each in numbers], cache)
        else:
            if numbers != self._cached:
                cache.keep([self._cached.index(each) for each in numbers])
            tokens = torch.tensor([[texts[each][-1]] for each in numbers], device=self._device)
            logits = self._model.next_logits(tokens, torch.ones_like(tokens[:, 0]), cache)
        self._cached = numbers
        cache.advance([len(texts[each]) for each in numbers])
        return logits

    def _whole(self, windows: Sequence[Sequence[int]], cache: KvCache | None) -> Tensor:
        longest = max(len(each) for each in windows)
        padded = [[*each, *[self._end] * (longest - len(each))] for each in windows]
        lengths = torch.tensor([len(each) for each in windows], device=self._device)
        return self._model.next_logits(torch.tensor(padded, device=self._device), lengths, cache)


def sample(logits: Tensor, options: Sequence[SamplingSettings], draws: Tensor) -> Tensor:
    """A token [B] for each row of logits [B, V], with the settings of each row and a draw [B] from 0 to 1."""
    if all(each.temperature == 0 for each in options):
        return logits.argmax(dim=-1)

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device)[:, None]

    size = logits.shape[-1]
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    places = torch.arange(size, device=logits.device)
    # A temperature of 0 keeps the most likely token alone.
    kept = column([1 if each.temperature == 0 else each.top_k or size for each in options])
    temperature = column([each.temperature or 1.0 for each in options])
    chances = (values / temperature).masked_fill(places >= kept, float("-inf")).softmax(dim=-1)
    before = chances.cumsum(dim=-1) - chances
    chances = chances.masked_fill((before >= column([each.top_p for each in options])) & (places > 0), 0.0)
    total = chances.cumsum(dim=-1)
    chosen = torch.searchsorted(total, draws[:, None] * total[:, -1:], right=True)
    last = (chances > 0).sum(dim=-1, keepdim=True) - 1  # rounding must not choose what was left out
    return order.gather(-1, chosen.minimum(last))[:, 0]
