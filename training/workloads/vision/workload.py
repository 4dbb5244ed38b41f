"""The image-classification workload: a small CNN or vision transformer, accuracy and F1 by torchmetrics.

Images stay uint8 until they are on the device. Random augmentation (shift, flip) uses torch's generator,
whose state is part of a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

import trainfleet.training.trainer.torchmetrics_compat  # noqa: F401 - must precede torchmetrics
from trainfleet.errors import InputError, Problem
from trainfleet.training.data import spread
from trainfleet.training.data.readers import UnreadableError
from trainfleet.training.workloads import Split, StepOutput, Workload
from trainfleet.training.workloads.lora import keep_frozen_in
from trainfleet.training.workloads.model_folder import (
    dtype_of,
    read_config,
    read_weights,
    write_model,
)
from trainfleet.training.workloads.transfer import to_device
from trainfleet.training.workloads.vision.images import image_blocks, pixels_of, square
from trainfleet.training.workloads.vision.models import make_model
from trainfleet.training.workloads.vision.settings import ImageModelSettings, LabelSettings, VisionSettings

KIND = "trainfleet-vision"
CLASSES = "classes.json"
_BASELINE_BLOCKS = 16
"""Number of blocks (of 8 MiB by default) of the training split averaged for the centroids."""


class Vision(Workload):
    """Batches hold `image`, uint8 [B, C, S, S], and `label`, int64 [B]."""

    metrics: tuple[str, ...] = ()
    precisions = ("fp32", "bf16")
    on_meta = True
    predict_settings = LabelSettings
    loss_unit = "nats/image"
    sample_tokens = 0
    flops_per_token = 0.0
    thread_safe_batch = True

    def __init__(self, settings: VisionSettings, cache: Path) -> None:
        self._configure(settings)
        self.prepared, self._data_classes = image_blocks(settings.data, cache)
        self.classes = self._data_classes
        if self._pretrained is not None:
            self.classes = self._pretrained.outputs(self._data_classes)
        self._outputs = torch.tensor([self.classes.index(each) for each in self._data_classes])
        self._blocks = self.prepared.splits(cache, disk=int(settings.data.disk_gib * 2**30))
        self.streamed = (
            sum(self.prepared.manifest.rows(split) for split in self._blocks)
            * settings.data.size**2
            * settings.data.channels
            > 4 << 30
        )

    def assets(self) -> dict[str, bytes]:
        """The names of the classes, in the order of the model's outputs."""
        return {CLASSES: json.dumps(list(self.classes)).encode()}

    @classmethod
    def for_inference(
        cls,
        settings: VisionSettings,
        assets: Mapping[str, bytes],
        folder: Path | None,
    ) -> Self:
        """The classes are among the assets; a pretrained model is read from its published folder."""
        workload = cls.__new__(cls)
        model: Any = settings.model
        if folder is not None and isinstance(model, ImageModelSettings) and model.pretrained is not None:
            settings = settings.model_copy(update={"model": _pretrained().exported(model, folder)})
        workload._configure(settings)
        workload.classes = tuple(json.loads(assets[CLASSES]))
        return workload

    def fingerprint(self) -> str:
        return self.prepared.manifest.digest()

    def build_model(self) -> torch.nn.Module:
        if self._pretrained is not None:
            model: torch.nn.Module = self._pretrained.build(self.classes)
            return keep_frozen_in(model, dtype_of(self.frozen_precision))
        data = self.settings.data
        return make_model(self.settings.model, data.size, data.channels, len(self.classes))

    def frozen_source(self) -> str | None:
        return self._pretrained.frozen_source() if self._pretrained is not None else None

    def size(self, split: Split) -> int:
        return self._blocks[split].size

    def blocks(self, split: Split) -> list[int]:
        """Samples per block file, for a windowed shuffle."""
        return self._blocks[split].sizes()

    def prefetch(self, split: Split, indices: Sequence[int]) -> None:
        """Open the blocks of these samples in the background."""
        self._blocks[split].prefetch(indices)

    def data_info(self) -> dict[str, Any]:
        """The data's entries in run.json."""
        return {"data": self.prepared.data_info(), "classes": list(self.classes)}

    def batch(self, split: Split, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        rows = self._blocks[split].rows(indices)
        labels = self._outputs[torch.from_numpy(rows["label"])]
        return {"image": torch.from_numpy(rows["image"]), "label": labels}

    def num_targets(self, split: Split, indices: Sequence[int]) -> float:  # noqa: ARG002 - one target per image
        return float(len(indices))

    def forward_loss(self, model: Callable[..., torch.Tensor], batch: dict[str, torch.Tensor]) -> StepOutput:
        images, labels = batch["image"], batch["label"]
        if getattr(model, "training", False):
            images = augmented(images, self.settings.data.shift, self.settings.data.flip)
        logits = model(images).float()
        found = logits.detach().argmax(dim=-1)
        return StepOutput(
            F.cross_entropy(logits, labels, reduction="sum"),
            len(labels),
            metric_inputs={"accuracy": (found, labels), "f1": (found, labels)},
        )

    def collections(self, split: Split) -> dict[str, Any]:  # noqa: ARG002 - the same for all splits
        """Accuracy over all images, and F1 averaged over classes."""
        from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

        count = len(self.classes)
        return {
            # Their validation of arguments reads values, which would wait for the device in each batch.
            "accuracy": MulticlassAccuracy(count, average="micro", validate_args=False),
            "f1": MulticlassF1Score(count, average="macro", validate_args=False),
        }

    def baseline(self, indices: Sequence[int]) -> dict[str, float]:
        """Validation accuracy of two simple models: the most common class, and the nearest mean image."""
        train, count = self._blocks["train"], len(self._data_classes)
        sums, numbers = np.zeros((count, int(np.prod(self._shape())))), np.zeros(count)
        for number in spread(len(train.entries), _BASELINE_BLOCKS):
            block = train.block(number)
            np.add.at(sums, block["label"], block["image"].reshape(len(block["label"]), -1))
            numbers += np.bincount(block["label"], minlength=count)
        means = np.where(numbers[:, None] > 0, sums / np.maximum(numbers, 1)[:, None], np.inf)
        seen = self._blocks["validation"].rows(indices)
        pictures = seen["image"].reshape(len(indices), -1).astype(np.float64)
        nearest = np.array([int(np.argmin(((means - picture) ** 2).sum(axis=1))) for picture in pictures])
        return {
            "majority_accuracy": float((seen["label"] == int(numbers.argmax())).mean()),
            "nearest_mean_accuracy": float((seen["label"] == nearest).mean()),
        }

    def read(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Rows with `image`: a path, encoded bytes, an array or nested lists of pixels."""
        images, problems = [], []
        for number, row in enumerate(rows):
            try:
                images.append(
                    square(pixels_of(row.get("image")), self.settings.data.size, self.settings.data.channels)
                )
            except UnreadableError as error:
                problems.append(
                    Problem(f"row {number}", f"image {error}", "a path, encoded bytes, or rows of pixels")
                )
        if problems:
            raise InputError("some rows have no image", problems)
        return {"image": torch.from_numpy(np.stack(images))}

    def read_samples(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, torch.Tensor]]:
        """Rows with `image` and `label`, the name of a class."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        problems = [
            Problem(
                f"row {number}", f"label `{row.get('label')}` is not a class of the model", self.classes[0]
            )
            for number, row in enumerate(rows)
            if str(row.get("label")) not in numbers
        ]
        if problems:
            raise InputError("some rows have no class of the model", problems)
        return [{**self.read(rows), "label": torch.tensor([numbers[str(row["label"])] for row in rows])}]

    @torch.no_grad()
    def predict(
        self, model: torch.nn.Module, batch: dict[str, torch.Tensor], **settings: Any
    ) -> list[dict[str, Any]]:
        """The best class and its probability, and the `top` best ones if requested."""
        top = min(int(settings.get("top", 1)), len(self.classes))
        scores, found = model(batch["image"]).float().softmax(dim=-1).topk(top)
        named = [
            [{"label": self.classes[label], "score": score} for label, score in zip(*each, strict=True)]
            for each in zip(found.tolist(), scores.tolist(), strict=True)
        ]
        return [{**each[0], "top": each} if top > 1 else each[0] for each in named]

    def export(self, model: torch.nn.Module, folder: Path) -> None:
        if self._pretrained is not None:
            self._pretrained.export(model, folder)
            return
        data = self.settings.data
        config = {
            "model": self.settings.model.model_dump(mode="json"),
            "size": data.size,
            "channels": data.channels,
            "classes": list(self.classes),
        }
        write_model(folder, KIND, model, config)

    def import_(self, folder: Path) -> torch.nn.Module:
        """Build a model from what `export` wrote; needs no training data."""
        if self._pretrained is not None:
            model: torch.nn.Module = self._pretrained.read(folder)
            return model
        return load_exported(folder, dtype_of(self.precision))

    def _configure(self, settings: VisionSettings) -> None:
        model: Any = settings.model
        # A subclass may have a model of its own.
        name = model.pretrained if isinstance(model, ImageModelSettings) else None
        self.settings = settings
        self._pretrained = _pretrained().PretrainedImages(settings, name) if name is not None else None
        self.on_meta = name is None

    def _shape(self) -> tuple[int, ...]:
        data = self.settings.data
        return data.channels, data.size, data.size


def _pretrained() -> Any:
    """Import transformers only if a pretrained model is used."""
    from trainfleet.training.workloads.vision import pretrained

    return pretrained


def load_exported(folder: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A classifier from an exported folder, whose `config.json` lists the classes in order."""
    config = read_config(folder, KIND)
    settings = ImageModelSettings.model_validate(config["model"])
    with torch.device("meta"):
        model = make_model(settings, config["size"], config["channels"], len(config["classes"]))
    return read_weights(folder, model, dtype)


def augmented(images: torch.Tensor, shift: int, flip: bool) -> torch.Tensor:
    """Images [B, C, S, S], each randomly shifted by up to `shift` pixels (border repeated) and flipped."""
    if flip:
        chosen = to_device(torch.rand(len(images)), images.device) < 0.5
        images = torch.where(chosen[:, None, None, None], images.flip(-1), images)
    if shift:
        count, _, height, width = images.shape
        moves = to_device(torch.randint(-shift, shift + 1, (2, count)), images.device)
        rows = (torch.arange(height, device=images.device)[None] + moves[0][:, None]).clamp(0, height - 1)
        columns = (torch.arange(width, device=images.device)[None] + moves[1][:, None]).clamp(0, width - 1)
        images = images[
            torch.arange(count, device=images.device)[:, None, None], :, rows[:, :, None], columns[:, None, :]
        ].permute(0, 3, 1, 2)
    return images
