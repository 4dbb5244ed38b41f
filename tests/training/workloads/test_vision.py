"""Image classification: data, randomness, metrics, export, and images that cannot be read."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from trainfleet.errors import InputError
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.workloads.vision.images import pixels_of, square
from trainfleet.training.workloads.vision.settings import VisionSettings
from trainfleet.training.workloads.vision.workload import Vision, augmented, load_exported

TINY = ("workload.model={kind: cnn, width: 8, stages: [1]}", "scaling.workers=1", "log.tensorboard=false")


def vision(cache: Path, *overrides: str) -> Vision:
    settings = load_recipe("vision-small", [*TINY, *overrides]).workload
    assert isinstance(settings, VisionSettings)
    return Vision(settings, cache)


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Sixty images of 12 by 10 pixels in two folders: dark ones and bright ones."""
    rng = np.random.default_rng(0)
    for number in range(60):
        folder = tmp_path / "pictures" / ("bright" if number % 2 else "dark")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.png").write_bytes(
            png((rng.integers(0, 100, (10, 12, 3)) + 150 * (number % 2)).astype(np.uint8))
        )
    return tmp_path / "pictures"


def test_the_digits_are_those_of_scikit_learn_each_once(cache: Path) -> None:
    from sklearn.datasets import load_digits

    workload = vision(cache)
    assert workload.classes == tuple("0123456789")
    seen = [workload.batch(split, range(workload.size(split))) for split in ("train", "validation", "test")]
    got = sorted(
        (int(label), bytes(image.flatten().tolist()))
        for part in seen
        for image, label in zip(part["image"], part["label"], strict=True)
    )
    images, labels = load_digits(return_X_y=True)
    assert got == sorted(
        (int(label), bytes(np.round(image * 255 / 16).astype(np.uint8)))
        for image, label in zip(images, labels, strict=True)
    )


def test_the_baseline_equals_a_count_and_a_mean_by_hand(cache: Path) -> None:
    workload = vision(cache)
    train, validation = (
        workload.batch(split, range(workload.size(split))) for split in ("train", "validation")
    )
    flat, flat_validation = train["image"].flatten(1).double(), validation["image"].flatten(1).double()
    means = torch.stack([flat[train["label"] == label].mean(dim=0) for label in range(10)])
    nearest = torch.cdist(flat_validation, means).argmin(dim=1)
    common = train["label"].bincount().argmax()
    assert workload.baseline(range(workload.size("validation"))) == {
        "majority_accuracy": pytest.approx(float((validation["label"] == common).double().mean())),
        "nearest_mean_accuracy": pytest.approx(float((validation["label"] == nearest).double().mean())),
    }


def test_a_folder_per_class_is_a_data_set_and_its_names_are_the_classes(pictures: Path, cache: Path) -> None:
    workload = vision(
        cache, f"workload.data.source={pictures}", "workload.data.channels=3", "workload.data.size=6"
    )
    assert workload.classes == ("bright", "dark")
    batch = workload.batch("train", range(workload.size("train")))
    assert batch["image"].shape[1:] == (3, 6, 6)
    assert [bool(image.float().mean() > 120) for image in batch["image"]] == [
        label == 0 for label in batch["label"].tolist()
    ]


def test_parquet_rows_are_encoded_images_or_pixels(tmp_path: Path, cache: Path) -> None:
    rng = np.random.default_rng(1)
    pixels = [rng.integers(0, 255, (8, 8)).astype(np.uint8) for _ in range(40)]
    kinds = ["a" if number % 2 else "b" for number in range(40)]
    encoded = pa.array([{"bytes": png(each), "path": None} for each in pixels])
    parquet.write_table(pa.table({"picture": encoded, "kind": kinds}), tmp_path / "encoded.parquet")
    parquet.write_table(
        pa.table({"picture": [each.tolist() for each in pixels], "kind": kinds}), tmp_path / "plain.parquet"
    )
    batches = []
    for name in ("encoded", "plain"):
        columns = ("workload.data.image=picture", "workload.data.label=kind", "workload.data.split_seed=3")
        workload = vision(cache, f"workload.data.source={tmp_path}/{name}.parquet", *columns)
        assert workload.classes == ("a", "b")
        batches.append(
            {
                tuple(image.flatten().tolist())
                for image in workload.batch("train", range(workload.size("train")))["image"]
            }
        )
    assert batches[0] <= {tuple(each.flatten().tolist()) for each in pixels}
    assert batches[1] <= {tuple(each.flatten().tolist()) for each in pixels}


@pytest.mark.parametrize("integrity", ["refuse", "quarantine"])
def test_an_unreadable_image_is_rejected_or_quarantined(pictures: Path, cache: Path, integrity: str) -> None:
    (pictures / "dark" / "torn.png").write_bytes((pictures / "dark" / "00.png").read_bytes()[:60])
    overrides = (
        f"workload.data.source={pictures}",
        f"workload.data.integrity={integrity}",
        "workload.data.quarantine_limit=0.1",
    )
    if integrity == "refuse":
        with pytest.raises(InputError, match=r"dark/torn\.png"):
            vision(cache, *overrides)
    else:
        left_out = vision(cache, *overrides).data_info()["data"]["left_out"]
        assert (left_out["count"], left_out["named"][0]["where"]) == (1, "dark/torn.png")


def test_images_of_one_class_or_no_images_are_one_clear_error(
    tmp_path: Path, pictures: Path, cache: Path
) -> None:
    with pytest.raises(InputError, match="has 1 class"):
        vision(cache, f"workload.data.source={pictures}/dark")
    with pytest.raises(InputError, match="does not exist"):
        vision(cache, f"workload.data.source={tmp_path}/missing")


def test_an_image_is_cropped_to_its_center_and_keeps_its_colors() -> None:
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 2:6] = (10, 200, 30)
    assert (square(wide, 4, 3) == np.array([10, 200, 30], np.uint8)[:, None, None]).all()
    assert square(wide, 4, 1).shape == (1, 4, 4)


NO_PICTURES: list[tuple[Any, str]] = [
    (b"nothing", "is not an image"),
    ("/nowhere.png", "cannot be read"),
    (np.zeros((4, 4)), "float64"),
    (np.zeros((4, 4, 7), np.uint8), "7 channels"),
    (np.full((2, 2), 300), "pixels from 300 to 300"),
    ([[1, 2], [3]], "differ in length"),
    (None, "is not an image"),
]


def test_every_unreadable_row_is_reported_with_the_reason(cache: Path) -> None:
    workload = vision(cache)
    good = {"image": np.zeros((8, 8), np.uint8)}
    with pytest.raises(InputError) as caught:
        workload.read([good, *({"image": each} for each, _ in NO_PICTURES)])
    found = {problem.where: problem.what for problem in caught.value.problems}
    assert set(found) == {f"row {number}" for number in range(1, len(NO_PICTURES) + 1)}
    for number, (_, message) in enumerate(NO_PICTURES, 1):
        assert message in found[f"row {number}"]


@pytest.mark.parametrize(
    "model",
    ["{kind: cnn, width: 8, stages: [1, 1]}", "{kind: vit, width: 16, layers: 2, heads: 2, patch: 4}"],
)
def test_an_export_loads_and_predicts_the_same(cache: Path, tmp_path: Path, model: str) -> None:
    workload = vision(cache, f"workload.model={model}")
    net = workload.build_model().eval()
    workload.export(net, tmp_path)
    images = workload.batch("test", range(20))["image"]
    rows = workload.read([{"image": image[0].numpy()} for image in images])
    assert torch.equal(rows["image"], images)
    for back in (workload.import_(tmp_path), load_exported(tmp_path)):
        assert torch.equal(back(images), net(images))
        assert workload.predict(back, rows, top=3) == workload.predict(net, rows, top=3)
    best = workload.predict(net, rows)[0]
    assert best["label"] == workload.classes[int(net(images)[0].argmax())]
    assert best["score"] == pytest.approx(float(net(images)[0].softmax(0).max()))


def test_shifts_move_pixels_and_flips_mirror_them() -> None:
    torch.manual_seed(0)
    images = torch.arange(64, dtype=torch.uint8).reshape(1, 1, 8, 8).expand(200, 1, 8, 8)
    moved = augmented(images, 1, False)
    centres = {int(each[0, 4, 4]) for each in moved}
    assert centres == {36 + down * 8 + right for down in (-1, 0, 1) for right in (-1, 0, 1)}
    assert {tuple(each[0, 0, :2].tolist()) for each in augmented(images, 0, True)} == {(0, 1), (7, 6)}
    assert torch.equal(augmented(images, 0, False), images)


def test_a_run_has_the_metrics_of_torchmetrics_and_resumes_exactly(
    cache: Path, run: Callable[..., RunResult], tmp_path: Path
) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    from trainfleet.training.inference.loaded import load_run

    recipe = load_recipe(
        "vision-small", [*TINY, "steps=12", "validation.every=4", "checkpoint.every=4", "optimizer.warmup=2"]
    )
    whole = run(recipe, tmp_path / "whole")
    asked = iter([False] * 6 + [True] * 9)
    run(recipe, tmp_path / "parts", should_stop=lambda: next(asked))
    assert run(recipe, tmp_path / "parts").metrics == whole.metrics
    trained: Any = load_run(str(tmp_path / "whole"), "newest", cache=cache)
    batch = trained.workload.batch("validation", range(trained.workload.size("validation")))
    found = trained.model(batch["image"]).argmax(dim=-1)
    assert whole.metrics["validation/accuracy"] == pytest.approx(accuracy_score(batch["label"], found))
    assert whole.metrics["validation/f1"] == pytest.approx(
        f1_score(batch["label"], found, average="macro"), abs=1e-6
    )


MISTAKES = [
    ("workload.model={kind: vit, patch: 3}", "workload.model.patch: 3 does not divide the side of 8"),
    (
        "workload.model={kind: vit, width: 30, patch: 4}",
        "workload.model.width: 30 cannot be split into 4 heads",
    ),
    (
        "workload.model.stages=[1,1,1,1]",
        "workload.model.stages: 4 stages halve images of side 8 to nothing",
    ),
    ("workload.data.shift=9", "workload.data.shift: 9 shifts images of side 8 out of view"),
    ("workload.data.pictures=x", "workload.data.pictures: unknown key"),
]


@pytest.mark.parametrize(("override", "message"), MISTAKES)
def test_conflicting_settings_are_reported(override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("vision-small", [override])
    assert message in str(caught.value)


def test_pixels_are_the_same_from_bytes_a_path_and_an_array(tmp_path: Path) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    (tmp_path / "a.png").write_bytes(png(pixels))
    for held in (
        pixels,
        pixels.tolist(),
        png(pixels),
        str(tmp_path / "a.png"),
        {"bytes": png(pixels), "path": None},
    ):
        assert (pixels_of(held) == pixels).all()
