"""A Hugging Face model in a workload: transformers' ViT on handwritten digits, or a pretrained ViT on your
images.

    cd examples && trainfleet train hf_vision.yaml

Images, metrics and baseline come from the built-in `vision` workload; only the model differs. `Logits`
adapts the model, because the step loop needs a forward pass that returns a tensor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from trainfleet.training.workloads.model_folder import need_transformers
from trainfleet.training.workloads.settings import Section
from trainfleet.training.workloads.vision.models import scaled
from trainfleet.training.workloads.vision.settings import VisionSettings
from trainfleet.training.workloads.vision.workload import Vision


class VitSettings(Section):
    """The shape of the ViT, or its pretrained weights."""

    kind: Literal["vit"] = "vit"
    pretrained: str | None = Field(
        None,
        description="Name or folder, such as google/vit-base-patch16-224-in21k; null: train from scratch.",
    )
    width: int = Field(64, ge=8)
    layers: int = Field(2, ge=1)
    heads: int = Field(4, ge=1)
    patch: int = Field(2, ge=1)


class HuggingFaceVit(Vision):
    """The `vision` workload with a transformers model."""

    class Settings(VisionSettings):
        name: Literal["hf_vision:HuggingFaceVit"]
        model: VitSettings = VitSettings()

    def build_model(self) -> nn.Module:
        tools, shape, data = need_transformers("hf_vision"), self.settings.model, self.settings.data
        if shape.pretrained is not None:
            inner = tools.AutoModelForImageClassification.from_pretrained(
                shape.pretrained, num_labels=len(self.classes), ignore_mismatched_sizes=True
            )
        else:
            config = tools.ViTConfig(
                hidden_size=shape.width,
                intermediate_size=4 * shape.width,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                image_size=data.size,
                patch_size=shape.patch,
                num_channels=data.channels,
                num_labels=len(self.classes),
                id2label=dict(enumerate(self.classes)),
                label2id={name: number for number, name in enumerate(self.classes)},
            )
            inner = tools.ViTForImageClassification(config)
        return Logits(inner)

    def export(self, model: nn.Module, folder: Path) -> None:
        model.inner.save_pretrained(folder)

    def import_(self, folder: Path) -> nn.Module:
        return Logits(
            need_transformers("hf_vision").AutoModelForImageClassification.from_pretrained(folder)
        ).eval()


class Logits(nn.Module):
    """Pixels, uint8 [B, C, S, S], to logits [B, K]."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pixels: Tensor) -> Tensor:
        return self.inner(pixel_values=scaled(pixels, next(self.inner.parameters()))).logits
