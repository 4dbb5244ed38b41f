"""A GPT: RMSNorm before each block, rotary positions, causal attention with normalised queries and keys, tied
head.

Shapes: B samples of T tokens, width D, H heads of size D/H, vocabulary V. NOTE: the head shares the
embedding's matrix, so an optimizer must see it once.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor, nn

from trainfleet.training.workloads.chunked_loss import ChunkedCrossEntropy
from trainfleet.training.workloads.lm.kv_cache import KvCache, LayerCache
from trainfleet.training.workloads.lm.settings import GptSettings

ROTARY_BASE = 10_000.0


class Gpt(nn.Module):
    """Tokens [B, T] to logits [B, T, V], or with targets to their loss, without the logits of all tokens."""

    def __init__(self, settings: GptSettings, vocabulary: int) -> None:
        super().__init__()
        self.settings = settings
        self.embedding = nn.Embedding(vocabulary, settings.width)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.norm = nn.RMSNorm(settings.width)
        self.loss = ChunkedCrossEntropy(settings.loss_chunk)
        self._initialise()

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None, count_correct: bool = False
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Logits; with `targets` [B, T], what `ChunkedCrossEntropy` returns: the sum of the loss, and the
        number of correct predictions if requested.
        """
        x = self._hidden(tokens)
        if targets is not None:
            loss: tuple[Tensor, Tensor | None] = self.loss(x, self.embedding.weight, targets, count_correct)
            return loss
        return F.linear(x, self.embedding.weight)

    def next_logits(self, tokens: Tensor, lengths: Tensor, cache: KvCache | None = None) -> Tensor:
        """Logits [B, V] of the token after each row.

        Args:
            tokens: rows [B, T], padded at the end; with a cache that has the prompts, the next tokens [B, 1].
            lengths: tokens in each row [B].
            cache: of what the rows began with. The caller advances it.
        """
        x = self._hidden(tokens, cache)
        last = x[torch.arange(len(x), device=x.device), lengths - 1]
        return F.linear(last, self.embedding.weight)

    def _hidden(self, tokens: Tensor, cache: KvCache | None = None) -> Tensor:
        """Hidden states [B, T, D] before the head."""
        decoding = cache is not None and cache.longest > 0
        positions = cache.longest + 1 if cache is not None and decoding else tokens.shape[1]
        angles = rotary_angles(positions, self.settings.width // self.settings.heads, tokens.device)
        rotation = cache.rotation(angles) if cache is not None and decoding else (angles.cos(), angles.sin())
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            x = block(x, rotation) if cache is None else block(x, rotation, cache.layers[number])
        normed: Tensor = self.norm(x)
        return normed

    def _initialise(self) -> None:
        """Blocks start as the identity (their last matrices are zero), so that a high learning rate is safe
        from the first step.
        """
        nn.init.normal_(self.embedding.weight, std=1 / math.sqrt(self.settings.width))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=1 / math.sqrt(module.in_features))
        for block in self.blocks:
            nn.init.zeros_(block.attention.out.weight)  # type: ignore[union-attr,arg-type]  # ModuleList is not generic
            nn.init.zeros_(block.mlp.down.weight)  # type: ignore[union-attr,arg-type]  # the same


class Block(nn.Module):
    """Attention and MLP with residual connections: [B, T, D] to [B, T, D]."""

    def __init__(self, settings: GptSettings) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(settings.width)
        self.attention = Attention(settings)
        self.mlp_norm = nn.RMSNorm(settings.width)
        self.mlp = Mlp(settings)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: LayerCache | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), rotation, cache))
        out: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return out


class Attention(nn.Module):
    """Causal self-attention over H heads: [B, T, D] to [B, T, D]."""

    def __init__(self, settings: GptSettings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.qkv = nn.Linear(settings.width, 3 * settings.width, bias=False)
        self.out = nn.Linear(settings.width, settings.width, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: LayerCache | None = None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k = (rotate(F.rms_norm(each, (each.shape[-1],)), *rotation) for each in (q, k))
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = cache.attend(q, k, v)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return out


class Mlp(nn.Module):
    """SwiGLU or GELU: [B, T, D] to [B, T, D]."""

    def __init__(self, settings: GptSettings) -> None:
        super().__init__()
        self.gated = settings.mlp == "swiglu"
        hidden = max(8, round(settings.width * settings.mlp_ratio / 8) * 8)
        self.up = nn.Linear(settings.width, 2 * hidden if self.gated else hidden, bias=False)
        self.down = nn.Linear(hidden, settings.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        if self.gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = F.silu(gate) * value
        else:
            hidden = F.gelu(hidden)
        out: Tensor = self.down(hidden)
        return out


def rotary_angles(length: int, size: int, device: torch.device) -> Tensor:
    """Rotation angles [length, size/2] of a head's pairs (Su et al. 2021, arXiv:2104.09864)."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
    return torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequencies)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of each head [B, H, T, size] by the position's angles."""
    left, right = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1)


def flops_per_token(parameters: int, settings: GptSettings) -> float:
    """Forward and backward: 6 per parameter, and 12·layers·width·context for attention (Chowdhery et al.
    2022, appendix B).
    """
    return 6.0 * parameters + 12.0 * settings.layers * settings.width * settings.context
