"""Two small image classifiers: a residual network with group norm, and a vision transformer.

Both map pixels, uint8 [B, C, S, S], to logits [B, K]. There is no batch norm: its running means would make
losses depend on the number of ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor, nn

from trainfleet.training.workloads.vision.settings import ImageModelSettings


def make_model(settings: ImageModelSettings, size: int, channels: int, classes: int) -> nn.Module:
    """The configured model for images of side `size`."""
    return (
        ResNet(settings, channels, classes)
        if settings.kind == "cnn"
        else VisionTransformer(settings, size, channels, classes)
    )


def scaled(pixels: Tensor, like: Tensor) -> Tensor:
    """Pixels centred around zero, in the type of the weights `like`."""
    return (pixels.to(like.dtype) - 127.5) / 64.0


class ResNet(nn.Module):
    """Stages of residual blocks; each further stage halves the resolution and doubles the channels."""

    def __init__(self, settings: ImageModelSettings, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, settings.width, 3, padding=1, bias=False)
        blocks, before = [], settings.width
        for stage, count in enumerate(settings.stages):
            width = settings.width << stage
            for number in range(count):
                blocks.append(Residual(before, width, 2 if stage and not number else 1))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.norm = _norm(before)
        self.dropout = nn.Dropout(settings.dropout)
        self.head = nn.Linear(before, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.stem(scaled(pixels, self.stem.weight)))))
        logits: Tensor = self.head(self.dropout(x.mean(dim=(2, 3))))
        return logits


class Residual(nn.Module):
    """Two pre-norm convolutions with a residual connection."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(before), _norm(width)
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.skip = (
            nn.Conv2d(before, width, 1, stride, bias=False)
            if (before, stride) != (width, 1)
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.skip(x) + self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        return out


class VisionTransformer(nn.Module):
    """Patches with learned positions, transformer blocks, mean pooling."""

    def __init__(self, settings: ImageModelSettings, size: int, channels: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, settings.width, settings.patch, settings.patch)
        self.positions = nn.Parameter(torch.randn(1, (size // settings.patch) ** 2, settings.width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                settings.width,
                settings.heads,
                4 * settings.width,
                settings.dropout,
                "gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(settings.layers)
        )
        self.norm = nn.LayerNorm(settings.width)
        self.head = nn.Linear(settings.width, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(scaled(pixels, self.patches.weight)).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(dim=1))
        return logits


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(next(groups for groups in (8, 4, 2, 1) if channels % groups == 0), channels)
