"""Turns images into blocks: finds, decodes, crops to a square and scales them, once per machine; names the
classes.

Classes are numbered in the order of their names over all splits, so that a class missing in one split does
not shift the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from trainfleet.training.data import (
    BadInput,
    Column,
    Integrity,
    Prepared,
    Row,
    Source,
    SplitRule,
    find_source,
    prepare,
    prepared_source,
)
from trainfleet.training.data.progress import progress_reporter
from trainfleet.training.data.readers import UnreadableError, decode_image
from trainfleet.training.data.sources import rows_of
from trainfleet.training.workloads.vision.settings import ImageSettings

DIGITS = "digits"
COLUMNS = ("image", "label")
MAX_CLASSES = 100_000


@dataclass(frozen=True)
class ImageTransform:
    """The transform that `prepare` runs: rows to images [C, S, S], uint8, and class indices."""

    image: str
    label: str
    size: int
    channels: int
    classes: tuple[str, ...]

    @property
    def columns(self) -> Mapping[str, Column]:
        return {"image": Column("uint8", (self.channels, self.size, self.size)), "label": Column("int64")}

    @property
    def key(self) -> str:
        classes = hashlib.sha256(json.dumps(self.classes).encode()).hexdigest()
        return f"pictures 1 {self.image} {self.label} {self.size} {self.channels} {classes}"

    def __call__(self, rows: Sequence[Row]) -> list[Mapping[str, Any] | BadInput | None]:
        numbers = {name: number for number, name in enumerate(self.classes)}
        return [self._one(row, numbers) for row in rows]

    def _one(self, row: Row, numbers: Mapping[str, int]) -> Mapping[str, Any] | BadInput:
        label = row.get(self.label)
        if label is None:
            return BadInput(row["name"], f"has no {self.label}")
        try:
            return {
                "image": square(pixels_of(row.get(self.image)), self.size, self.channels),
                "label": numbers[str(label)],
            }
        except UnreadableError as error:
            return BadInput(row["name"], str(error))


def image_blocks(settings: ImageSettings, cache: Path) -> tuple[Prepared, tuple[str, ...]]:
    """The prepared images, and the names of their classes. Images that the source holds prepared are only
    opened.

    Raises:
        InputError: there are none, some cannot be used, there are fewer than two classes, or the prepared
            images have another size.
    """
    shape = {"size": settings.size, "channels": settings.channels}
    found = None if settings.source == DIGITS else prepared_source(settings.source, COLUMNS, settings=shape)
    if found is not None:
        return found, tuple(found.manifest.notes["classes"])
    source = _source(settings, cache)
    classes = _classes(settings, source, cache)
    if not 2 <= len(classes) <= MAX_CLASSES:
        count = f"{len(classes)} class{'es' if len(classes) != 1 else ''}"
        what = f"{settings.source} has {count} ({', '.join(classes[:3])})"
        fix = f"use a folder per class, or another `label` than `{settings.label}`"
        raise InputError("classification needs at least two classes", [Problem("workload.data", what, fix)])
    prepared = prepare(
        source,
        ImageTransform(settings.image, settings.label, settings.size, settings.channels, classes),
        cache,
        name="pictures",
        rule=SplitRule(settings.validation_share, settings.test_share, settings.split_seed),
        integrity=Integrity(settings.integrity, settings.quarantine_limit),
        scatter=0,
        notes={"classes": list(classes)},
        settings=settings.model_dump(mode="json"),
        store=settings.store,
        progress=progress_reporter("pictures"),
    )
    return prepared, classes


def pixels_of(value: Any) -> NDArray[np.uint8]:
    """Pixels [height, width] or [height, width, channels] of an array, nested lists, encoded bytes or a path.

    Raises:
        UnreadableError: the value is not an image.
    """
    if isinstance(value, Mapping):  # as Hugging Face datasets store images in parquet
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
    if isinstance(value, str | Path):
        try:
            value = Path(value).read_bytes()
        except OSError as error:
            raise UnreadableError(f"cannot be read ({error.strerror})") from error
    if isinstance(value, bytes):
        value = decode_image(value)
    try:
        pixels = np.asarray(value)
    except ValueError as error:
        raise UnreadableError("its rows of pixels differ in length") from error
    if pixels.dtype.kind not in "ui" or pixels.ndim not in (2, 3) or not pixels.size:
        raise UnreadableError(
            f"is not an image: {pixels.dtype} {list(pixels.shape)} instead of integers [height, width] or "
            "[height, width, channels]"
        )
    if pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4):
        raise UnreadableError(f"has {pixels.shape[2]} channels instead of 1, 3 or 4")
    if int(pixels.min()) < 0 or int(pixels.max()) > 255:
        raise UnreadableError(f"has pixels from {pixels.min()} to {pixels.max()} instead of 0 to 255")
    return pixels.astype(np.uint8)


def square(pixels: NDArray[np.uint8], size: int, channels: int) -> NDArray[np.uint8]:
    """The central square of an image, scaled to [channels, size, size]."""
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.shape[:2] != (size, size) or (pixels.ndim == 2) != (channels == 1):
        from PIL import Image

        image = Image.fromarray(pixels).convert("L" if channels == 1 else "RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side)).resize(
            (size, size), Image.Resampling.BILINEAR
        )
        pixels = np.asarray(image)
    return np.ascontiguousarray(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1))


def _source(settings: ImageSettings, cache: Path) -> Source:
    where = settings.source
    if where == DIGITS:
        where = str(_digits(cache))
    try:
        found = find_source(where, settings.glob)
        columns = (settings.image, settings.label)
        tables = found.units and all(
            piece.kind in ("parquet", "hf", "jsonl") for unit in found.units for piece in unit.pieces
        )
        return find_source(where, settings.glob, columns=columns) if tables else found
    except InputError as error:
        problems = [
            Problem(f"workload.data.source {each.where}", each.what, each.fix) for each in error.problems
        ]
        raise InputError("there are no images to train on", problems) from error


def _digits(cache: Path) -> Path:
    """scikit-learn's digits as a parquet file: 8 x 8 pixels, 17 grey levels."""
    path = cache / "digits-1.parquet"
    if not path.is_file():
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise InputError(
                "scikit-learn is not installed",
                [Problem("digits", "is part of it", "pip install trainfleet[vision]")],
            ) from error
        import io

        import pyarrow as pa
        from pyarrow import parquet

        images, labels = load_digits(return_X_y=True)
        pixels = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        buffer = io.BytesIO()
        parquet.write_table(pa.table({"image": pixels.tolist(), "label": labels}), buffer)
        try:
            cache.mkdir(parents=True, exist_ok=True)
            write_whole(path, buffer.getvalue())
        except OSError as error:
            fix = "set TRAINFLEET_CACHE to a writable folder"
            raise InputError(
                "cannot prepare the data", [Problem(str(cache), error.strerror or str(error), fix)]
            ) from error
    return path


def _classes(settings: ImageSettings, source: Source, cache: Path) -> tuple[str, ...]:
    """Sorted class names: the folders of image files, or one cached pass over a table's label column."""
    pieces = [piece for unit in source.units for piece in unit.pieces]
    if all(piece.kind == "image" for piece in pieces):
        return tuple(sorted({PurePosixPath(piece.path).parent.name for piece in pieces}))
    key = hashlib.sha256(json.dumps([source.key, settings.label]).encode()).hexdigest()[:20]
    kept = cache / f"classes-{key}.json"
    if not kept.is_file():
        where = str(_digits(cache)) if settings.source == DIGITS else settings.source
        column = find_source(where, settings.glob, columns=(settings.label,))
        rows = (row for unit in column.units for row in rows_of(unit) if not isinstance(row, BadInput))
        found = {str(row[settings.label]) for row in rows if row.get(settings.label) is not None}
        write_whole(kept, json.dumps(sorted(found)))
    return tuple(json.loads(kept.read_text(encoding="utf-8")))
