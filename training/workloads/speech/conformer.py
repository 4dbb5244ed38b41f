"""A small speech recogniser: log-mel spectrogram, two convolutions (4x shorter), Conformer-like blocks, CTC
letters.

Shapes: B sounds, F frames of 10 ms, T = F/4 steps, width D, K letters. NOTE: padding must be zero before
every convolution and masked in attention, or a sound's letters would depend on longer sounds in its batch.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor, nn

from trainfleet.training.workloads.lm.gpt import rotary_angles, rotate
from trainfleet.training.workloads.speech.settings import SpeechModelSettings
from trainfleet.training.workloads.transfer import to_device

WINDOW_S, HOP_S = 0.025, 0.010


class SmallCtc(nn.Module):
    """Log-mel frames [B, F, M] and their numbers [B] to logits [B, T, K]."""

    def __init__(self, settings: SpeechModelSettings, letters: int) -> None:
        super().__init__()
        width = settings.width
        self.shorten = nn.ModuleList(
            [nn.Conv1d(settings.mels, width, 5, 2, 2), nn.Conv1d(width, width, 5, 2, 2)]
        )
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters)

    def forward(self, frames: Tensor, counts: Tensor) -> Tensor:
        x = frames.to(self.head.weight.dtype).transpose(1, 2)
        for convolution in self.shorten:
            x, counts = F.gelu(convolution(x)), shortened(counts)
            x = x * _seen(counts, x.shape[2])[:, None].to(x.dtype)
        x, seen = x.transpose(1, 2), _seen(counts, x.shape[2])
        angles = rotary_angles(x.shape[1], self.blocks[0].size, x.device)  # type: ignore[arg-type]  # ModuleList forgets what it holds
        rotation = angles.cos(), angles.sin()
        for block in self.blocks:
            x = block(x, seen, rotation)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Block(nn.Module):
    """Attention, convolution and MLP, each added to what came in: [B, T, D] to [B, T, D]."""

    def __init__(self, settings: SpeechModelSettings) -> None:
        super().__init__()
        width = settings.width
        self.heads, self.size = settings.heads, width // settings.heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.near = (
            nn.Linear(width, 2 * width),
            nn.Conv1d(width, width, settings.kernel, padding="same", groups=width),
        )
        self.near_norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor, seen: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.dropout(self._attend(self.norms[0](x), seen, rotation))
        x = x + self.dropout(self._convolve(self.norms[1](x), seen))
        out: Tensor = x + self.dropout(self.down(F.silu(self.up(self.norms[2](x)))))
        return out

    def _attend(self, x: Tensor, seen: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            rotate(q, *rotation), rotate(k, *rotation), v, attn_mask=seen[:, None, None]
        )
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return out

    def _convolve(self, x: Tensor, seen: Tensor) -> Tensor:
        y = F.glu(self.gate(x), dim=-1) * seen[:, :, None].to(x.dtype)
        y = self.near(y.transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.mix(F.silu(self.near_norm(y)))
        return out


def shortened(counts: Tensor) -> Tensor:
    """Number of steps after a convolution of stride 2."""
    return (counts + 1) // 2


def steps_of(counts: Tensor) -> Tensor:
    """Number of output steps for a number of frames."""
    return shortened(shortened(counts))


def log_mel(sound: Tensor, lengths: Tensor, rate: int, mels: int) -> tuple[Tensor, Tensor]:
    """Sounds [B, S] of `lengths` samples to log-mel frames [B, F, mels], each sound's with mean 0 and
    deviation 1, and their numbers [B].
    """
    window, hop = round(rate * WINDOW_S), round(rate * HOP_S)
    sound = F.pad(sound.float(), (0, max(0, window - sound.shape[1])))
    spectrum = torch.stft(
        sound,
        window,
        hop,
        window=torch.hann_window(window, device=sound.device),
        center=False,
        return_complex=True,
    )
    power = torch.view_as_real(spectrum).square().sum(-1).transpose(1, 2)
    frames = torch.log(power @ mel_bands(mels, window, rate, str(sound.device)) + 1e-6)
    counts = (lengths.clamp(min=window) - window) // hop + 1
    seen = _seen(counts, frames.shape[1])[:, :, None].to(frames.dtype)
    size = (counts * mels)[:, None, None]
    centred = (frames - (frames * seen).sum((1, 2), keepdim=True) / size) * seen
    return centred / (centred.square().sum((1, 2), keepdim=True) / size + 1e-5).sqrt(), counts


@functools.cache
def mel_bands(mels: int, window: int, rate: int, device: str = "cpu") -> Tensor:
    """Triangles [window/2 + 1, mels] that are equally wide on the mel scale (O'Shaughnessy 1987), from 20 Hz
    to half the rate.
    """
    edges = torch.linspace(_mel(20.0), _mel(rate / 2), mels + 2)
    heights = 700 * (10 ** (edges / 2595) - 1)
    frequencies = torch.linspace(0, rate / 2, window // 2 + 1)[:, None]
    rising = (frequencies - heights[:-2]) / (heights[1:-1] - heights[:-2])
    falling = (heights[2:] - frequencies) / (heights[2:] - heights[1:-1])
    return to_device(torch.minimum(rising, falling).clamp(min=0), device)


def _mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)


def _seen(counts: Tensor, length: int) -> Tensor:
    """Which of `length` places [B, length] belong to the sounds."""
    return torch.arange(length, device=counts.device)[None] < counts[:, None]
