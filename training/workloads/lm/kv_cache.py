"""The keys and values of tokens that a GPT has read, so that each new token costs one position.

Shapes: B texts, H heads of size S, C positions. NOTE: rows have different lengths. What lies after a row's
length is masked and overwritten later.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor


class LayerCache:
    """The keys and values of one layer, [B, H, C, S] each."""

    def __init__(self, cache: KvCache) -> None:
        self.cache = cache
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new positions, and attend to all of each row up to them: [B, H, T, S]."""
        if self.keys is None or self.values is None:
            shape = (*k.shape[:2], self.cache.capacity, k.shape[3])
            self.keys, self.values = k.new_zeros(shape), v.new_zeros(shape)
            self.keys[:, :, : k.shape[2]], self.values[:, :, : k.shape[2]] = k, v
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        lengths = self.cache.lengths
        rows = torch.arange(len(lengths), device=lengths.device)
        self.keys[rows, :, lengths], self.values[rows, :, lengths] = k[:, :, 0], v[:, :, 0]
        most = self.cache.longest + 1
        seen = torch.arange(most, device=lengths.device) <= lengths[:, None]
        keys, values = self.keys[:, :, :most], self.values[:, :, :most]
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[:, None, None])


class KvCache:
    """The cache of all layers: first the prompts, then one token of each row at a time.

    Attributes:
        capacity: positions of each row.
        lengths: how many positions of each row are cached, [B].
        longest: the largest of them.
    """

    def __init__(self, layers: int, capacity: int, device: torch.device) -> None:
        self.capacity, self.longest = capacity, 0
        self.lengths = torch.zeros(0, dtype=torch.int64, device=device)
        self.layers = [LayerCache(self) for _ in range(layers)]

    def rotation(self, angles: Tensor) -> tuple[Tensor, Tensor]:
        """The rotation of one new token per row, from the angles [C, S/2] of all positions."""
        mine = angles[self.lengths][:, None, None]
        return mine.cos(), mine.sin()

    def advance(self, lengths: Sequence[int]) -> None:
        """Set how many positions of each row are cached now."""
        self.lengths = torch.tensor(lengths, dtype=torch.int64, device=self.lengths.device)
        self.longest = max(lengths)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these."""
        chosen = torch.tensor(rows, dtype=torch.int64, device=self.lengths.device)
        self.lengths = self.lengths[chosen]
        self.longest = int(self.lengths.max())
        for layer in self.layers:
            if layer.keys is not None and layer.values is not None:
                layer.keys, layer.values = layer.keys[chosen], layer.values[chosen]
