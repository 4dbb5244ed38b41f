"""Pretrained image classifiers of Hugging Face: fully trained, with a frozen encoder, or by LoRA.

The model scales the pixels as its image processor does. Images are cropped and resized before, as those of
every model of this workload.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.lora import merged, with_lora
from trainfleet.training.workloads.model_folder import need_transformers, source_digest
from trainfleet.training.workloads.pretrained_folder import (
    KEY,
    PREPROCESSOR,
    config_for,
    preprocessor,
    require_complete,
)
from trainfleet.training.workloads.stored_weights import Reads, StoredWeights, load, require_stored
from trainfleet.training.workloads.vision.settings import ImageModelSettings, VisionSettings

_SCALE = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
"""What a processor does with the values of pixels."""
_BILINEAR = 2
"""Pillow's number of the filter that `images.square` resizes with."""


class Classifier(StoredWeights):
    """A model of transformers: pixels, uint8 [B, C, S, S], to logits [B, K]."""

    mean: Tensor
    std: Tensor

    def __init__(self, inner: Any, reads: Reads, mean: Tensor, std: Tensor, frozen: Any = None) -> None:
        super().__init__()
        self.inner, self.reads = inner, reads
        self._frozen = (frozen,)  # in a tuple: it is a part of `inner` already
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        kind = next(self.inner.parameters()).dtype
        logits: Tensor = self.inner(pixel_values=(pixels.to(kind) - self.mean) / self.std).logits
        return logits

    def train(self, mode: bool = True) -> Classifier:
        """As in torch; a frozen encoder also keeps its running means, and drops nothing out."""
        super().train(mode)
        if self._frozen[0] is not None:
            self._frozen[0].eval()
        return self


class PretrainedImages:
    """A pretrained classifier, whose files are checked when it is made.

    Attributes:
        labels: of the model's own outputs, in their order.
    """

    def __init__(self, settings: VisionSettings, name: str) -> None:
        self.settings, self.name = settings.model, name
        self.size, self.channels = settings.data.size, settings.data.channels
        self.tools = need_transformers(f"{KEY} {name}")
        self.config = config_for(name, "image")
        self.processor = preprocessor(name)
        self.labels = tuple(str(self.config.id2label[number]) for number in sorted(self.config.id2label))
        self._require_images()

    def outputs(self, classes: Sequence[str]) -> tuple[str, ...]:
        """The names of the outputs of a model that is trained on data with these classes.

        Raises:
            InputError: the model's own classifier is used, and lacks some of them.
        """
        if self.settings.head == "new":
            return tuple(classes)
        unknown = [each for each in classes if each not in self.labels]
        if unknown:
            what = (
                f"`{self.name}` tells {len(self.labels)} classes apart ({', '.join(self.labels[:3])}, ...), "
                f"the data has {len(classes)}, of which it lacks {', '.join(unknown[:3])}"
                f"{'' if len(unknown) <= 3 else f' and {len(unknown) - 3} more'}"
            )
            fix = "workload.model.head=new, which replaces the classifier; or name the classes as the model"
            raise InputError("the labels do not fit the model", [Problem("workload.model.head", what, fix)])
        return self.labels

    def build(self, classes: Sequence[str]) -> nn.Module:
        """The model with its pretrained weights and these outputs.

        Raises:
            InputError: its files lack weights, or LoRA finds none of its targets.
        """
        labels = dict(enumerate(classes))
        more = {"num_labels": len(labels), "id2label": labels}
        more["label2id"] = {each: number for number, each in labels.items()}
        kind = self.tools.AutoModelForImageClassification
        loaded = load(kind, self.name, torch.float32, replace=True, **more)
        inner, lacking = loaded.model, loaded.missing | loaded.mismatched
        head = _head(inner)
        if self.settings.head == "new":
            lacking = frozenset(name for name in lacking if not _inside(name, head))
            for part in (each for name in head for each in inner.get_submodule(name).modules()):
                if hasattr(part, "reset_parameters"):
                    part.reset_parameters()
        require_stored(self.name, lacking)
        require_complete(self.name, lacking)
        return self._with_scale(inner, loaded.reads, head)

    def read(self, folder: Path) -> nn.Module:
        """The model that `export` wrote, in evaluation mode."""
        kind = self.tools.AutoModelForImageClassification
        return self._scaled(kind.from_pretrained(folder, dtype=torch.float32), {}).eval()

    def export(self, model: nn.Module, folder: Path) -> None:
        """Write the model and its image processor, in the layout of `save_pretrained`."""
        merged(model.inner).save_pretrained(folder)
        scale = {key: self.processor[key] for key in _SCALE if key in self.processor}
        size = {"do_resize": True, "size": {"height": self.size, "width": self.size}, "resample": _BILINEAR}
        # Any model's processor may be this one: it only resizes and scales, as the training did.
        found = {"image_processor_type": "ViTImageProcessor", **size, **scale}
        (folder / PREPROCESSOR).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")

    def frozen_source(self) -> str | None:
        """As `Workload.frozen_source`."""
        return source_digest(self.name) if self.settings.freeze_encoder or self.settings.lora else None

    def _with_scale(self, inner: Any, reads: Reads, head: Sequence[str]) -> nn.Module:
        if self.settings.lora is not None:
            return self._scaled(with_lora(inner, self.settings.lora, head=head), reads)
        if not self.settings.freeze_encoder:
            return self._scaled(inner, reads)
        for name, parameter in inner.named_parameters():
            parameter.requires_grad_(_inside(name, head))
        return self._scaled(inner, reads, inner.base_model)

    def _scaled(self, inner: Any, reads: Reads, frozen: Any = None) -> Classifier:
        found = self.processor
        factor = float(found.get("rescale_factor", 1 / 255)) if found.get("do_rescale", True) else 1.0
        plain = not found.get("do_normalize", True)
        mean, std = ([0.0], [1.0]) if plain else (found.get("image_mean"), found.get("image_std"))
        center, spread = (
            torch.tensor(each, dtype=torch.float32).reshape(-1, 1, 1) / factor for each in (mean, std)
        )
        return Classifier(inner, reads, center, spread, frozen)

    def _require_images(self) -> None:
        """Raises:
        InputError: the model takes images of another size or number of channels than the data has.
        """
        expected = getattr(self.config, "num_channels", None)
        if isinstance(expected, int) and expected != self.channels:
            what = f"`{self.name}` takes images of {expected} channels, the data has {self.channels}"
            problem = Problem("workload.data.channels", what, f"workload.data.channels={expected}")
            raise InputError("the images do not fit the model", [problem])
        if self.processor.get("do_normalize", True):
            for key in ("image_mean", "image_std"):
                values = self.processor.get(key)
                if not isinstance(values, list) or len(values) not in (1, self.channels):
                    what = f"`{self.name}`: {PREPROCESSOR} has no {key} for {self.channels} channels"
                    fix = f"{self.channels} numbers, as in the model's training"
                    raise InputError("the image processor cannot be used", [Problem(KEY, what, fix)])
        with torch.device("meta"):
            inner = self.tools.AutoModelForImageClassification.from_config(self.config).eval()
            try:
                inner(pixel_values=torch.empty(1, self.channels, self.size, self.size))
            except (ValueError, RuntimeError) as error:
                size = getattr(self.config, "image_size", None)
                what = (
                    f"`{self.name}` rejects images of {self.size} pixels: {str(error).splitlines()[0][:200]}"
                )
                fix = f"workload.data.size={size}" if isinstance(size, int) else "another workload.data.size"
                raise InputError(
                    "the images do not fit the model", [Problem("workload.data.size", what, fix)]
                ) from error


def exported(settings: ImageModelSettings, folder: Path) -> ImageModelSettings:
    """The settings of a model that `PretrainedImages.export` wrote."""
    update = {"pretrained": str(folder), "head": "pretrained", "lora": None, "freeze_encoder": False}
    return settings.model_copy(update=update)


def _head(inner: Any) -> list[str]:
    """The modules that are not part of the encoder and have weights, by name."""
    found = [name for name, part in inner.named_children() if name != inner.base_model_prefix]
    return [name for name in found if any(True for _ in inner.get_submodule(name).parameters())]


def _inside(name: str, modules: Sequence[str]) -> bool:
    return any(name.startswith(f"{each}.") for each in modules)
