"""Recipe settings of image classification: model and images. Without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from trainfleet.training.workloads.settings import (
    BrokenRule,
    LoraSettings,
    RawData,
    RecipeView,
    Section,
    WorkloadSettings,
)


class ImageModelSettings(Section):
    """The shape of the model: a residual convolutional network, or a vision transformer; or a pretrained one
    of Hugging Face, for which only `head`, `freeze_encoder` and `lora` count.
    """

    pretrained: str | None = Field(
        None,
        description="A Hugging Face image classifier by name or folder; null: a small model, trained from "
        "scratch.",
    )
    head: Literal["new", "pretrained"] = Field(
        "new",
        description="pretrained: `new`: a classifier with random weights for the classes of the data; "
        "`pretrained`: the model's own, whose labels must include these classes.",
    )
    freeze_encoder: bool = Field(
        False, description="pretrained: train the classifier only, on the features of the pretrained encoder."
    )
    lora: LoraSettings | None = Field(
        None,
        description="pretrained: train the classifier, and low-rank adapters on frozen weights; null: train "
        "all weights.",
    )
    kind: Literal["cnn", "vit"] = Field("cnn", description="A convolutional network or a vision transformer.")
    width: int = Field(
        32,
        ge=4,
        description="Channels of the first stage (cnn; each further stage has twice as many), or the width "
        "(vit).",
    )
    stages: tuple[int, ...] = Field(
        (2, 2),
        min_length=1,
        description="cnn: residual blocks per stage; between stages the sides are halved.",
    )
    layers: int = Field(4, ge=1, description="vit: transformer blocks.")
    heads: int = Field(4, ge=1, description="vit: attention heads.")
    patch: int = Field(4, ge=1, description="vit: side of a patch in pixels.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout rate.")


class LabelSettings(Section):
    """How `predict` and `serve` answer."""

    top: int = Field(1, ge=1, description="How many classes, the most probable first.")


class ImageSettings(Section):
    """Which pictures, and how they are brought to one size."""

    source: str = Field(
        "digits",
        description="`digits`: 1,797 written digits that scikit-learn brings; else a folder with a folder "
        "per class, parquet, an object store's URL, hf:NAME, or prepared data.",
    )
    glob: str = Field("**/*", description="Which files of a folder.")
    image: str = Field(
        "image",
        description="Column of the pictures in parquet and datasets: encoded bytes, or rows of pixels.",
    )
    label: str = Field("label", description="Column of the class.")
    size: int = Field(
        8, ge=4, description="Side of the square that images are cropped and scaled to, in pixels."
    )
    channels: Literal[1, 3] = Field(1, description="Colour channels: 1 for grey, 3 for RGB.")
    shift: int = Field(0, ge=0, description="Maximum random shift of training images, in pixels.")
    flip: bool = Field(False, description="Mirror training images at random.")
    validation_share: float = Field(
        0.1, gt=0, lt=0.5, description="Share of the images that form the validation split."
    )
    test_share: float = Field(0.1, gt=0, lt=0.5, description="Share of the images that form the test split.")
    split_seed: int = Field(0, ge=0, description="Seed of the split, independent of the run's seed.")
    integrity: Literal["refuse", "quarantine"] = Field(
        "refuse", description="What to do with files that are not images."
    )
    quarantine_limit: float = Field(
        0.01, ge=0, le=1, description="Largest share of images that `quarantine` may skip."
    )
    disk_gib: float = Field(64, gt=0, description="Disk for blocks of an object store per machine.")
    store: str | None = Field(
        None,
        description="Object store's URL or shared folder: prepared data that it holds is read from there, "
        "other data is copied to it; null: each machine prepares its own.",
    )


class VisionSettings(WorkloadSettings):
    """Image classification."""

    metric_names: ClassVar[tuple[str, ...]] = ("accuracy", "f1")
    name: Literal["vision"]
    model: ImageModelSettings = ImageModelSettings()
    data: ImageSettings = ImageSettings()

    def reads_weights(self) -> bool:
        # A subclass may have a model of its own.
        return isinstance(self.model, ImageModelSettings) and self.model.pretrained is not None

    def raw_data(self) -> Iterator[RawData]:
        data = self.data
        if data.source != "digits":
            yield RawData(data.source, data.glob, (data.image, data.label), strict=data.integrity == "refuse")

    def check_recipe(self, recipe: RecipeView) -> Iterator[BrokenRule]:  # noqa: ARG002 - for subclasses
        model, data = self.model, self.data
        if data.shift >= data.size:
            yield (
                "workload.data.shift workload.data.size",
                f"{data.shift} shifts images of side {data.size} out of view",
                "a smaller shift",
            )
        if isinstance(model, ImageModelSettings):  # a subclass may have a model of its own
            yield from _pretrained_rules(model)
            if model.pretrained is not None:
                return
        if model.kind == "vit" and data.size % model.patch:
            yield (
                "workload.model.patch workload.data.size",
                f"{model.patch} does not divide the side of {data.size}",
                f"a divisor of {data.size}",
            )
        if model.kind == "vit" and model.width % model.heads:
            what = f"{model.width} cannot be split into {model.heads} heads"
            yield "workload.model.width workload.model.heads", what, f"a multiple of {model.heads}"
        if model.kind == "cnn" and data.size >> (len(model.stages) - 1) < 2:
            what = f"{len(model.stages)} stages halve images of side {data.size} to nothing"
            yield "workload.model.stages workload.data.size", what, "fewer stages, or larger images"


def _pretrained_rules(model: ImageModelSettings) -> Iterator[BrokenRule]:
    if model.pretrained is None:
        for key in ("freeze_encoder", "lora", "head"):
            if getattr(model, key) != ImageModelSettings.model_fields[key].default:
                what = "does nothing without a pretrained model"
                yield f"workload.model.{key} workload.model.pretrained", what, "leave it out"
        return
    if model.lora is not None and model.freeze_encoder:
        what = "an encoder with adapters is not frozen"
        yield "workload.model.freeze_encoder workload.model.lora", what, "leave one of them out"
