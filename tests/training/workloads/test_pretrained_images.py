"""Pretrained image classifiers: trained fully, with a frozen encoder and by LoRA, exported for transformers, and
folders that do not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.training.checkpoint_reader import tensors_of
from tests.training.training_runs import StopAfter, metric_values, rows_of
from tests.training.workloads import models
from trainfleet.errors import InputError
from trainfleet.training.inference.loaded import load_run
from trainfleet.training.inference.predictor import open_predictor
from trainfleet.training.publish.export import publish
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.workloads.vision.settings import VisionSettings
from trainfleet.training.workloads.vision.workload import Vision

Run = Callable[..., RunResult]
DIGITS = tuple("0123456789")
STEPS = 12


def recipe(folder: Path, model: str = "", *overrides: str) -> Recipe:
    small = [
        "scaling.workers=1",
        "log.tensorboard=false",
        "log.every=1",
        f"steps={STEPS}",
        "optimizer.warmup=2",
        f"validation.every={STEPS}",
        "checkpoint.every=6",
        "checkpoint.metric=validation/loss",
        "checkpoint.mode=min",
        "publish.gates={test/accuracy: {min: 0.0}}",
    ]
    settings = f"workload.model={{pretrained: {folder}{model}}}"
    return load_recipe("vision-finetune-tiny", [*small, settings, *overrides])


def vision(folder: Path, cache: Path, model: str = "", *overrides: str) -> Vision:
    settings = recipe(folder, model, *overrides).workload
    assert isinstance(settings, VisionSettings)
    return Vision(settings, cache)


TRAINED = {
    "": lambda _: True,
    ", freeze_encoder: true": lambda name: "classifier" in name,
    ", lora: {rank: 4}": lambda name: "classifier" in name or "lora_" in name,
}
"""By the settings of the model, which weights are trained."""


def test_weights_of_a_file_in_half_precision_are_trained_in_fp32(cache: Path, tmp_path: Path) -> None:
    folder = models.vit(tmp_path / "model")
    models.halve(folder)
    model = vision(folder, cache).build_model()
    assert {each.dtype for each in model.parameters()} == {torch.float32}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", TRAINED)
@pytest.mark.parametrize("make", [models.vit, models.resnet])
def test_a_model_is_trained_resumed_exported_and_loaded_by_transformers(
    cache: Path, run: Run, tmp_path: Path, make: Callable[..., Path], model: str
) -> None:
    """The run's own model, its checkpoint, its published folder and transformers have the same outputs."""
    import transformers

    if make is models.resnet and "lora" in model:
        pytest.skip("a ResNet has no linear layers; its error is tested below")
    folder = make(tmp_path / "model")
    small = recipe(folder, model, f"optimizer.lr={1e-2 if make is models.resnet else 2e-3}")
    whole = run(small, tmp_path / "whole")
    losses = metric_values(rows_of(tmp_path / "whole"), "loss")
    assert sum(losses[-3:]) < sum(losses[:3])
    assert whole.metrics["test/accuracy"] >= 0
    run(small, tmp_path / "parts", should_stop=StopAfter(8))
    assert run(small, tmp_path / "parts").metrics == whole.metrics
    trained: Any = load_run(str(tmp_path / "whole"), "newest", cache=cache)
    theirs = transformers.AutoModelForImageClassification.from_pretrained(folder)
    before, now = dict(theirs.named_parameters()), dict(trained.model.inner.named_parameters())
    changed = {
        name
        for name, value in now.items()
        if (plain := name.removeprefix("base_model.model.").replace(".base_layer", "")) not in before
        or before[plain].shape != value.shape
        or not torch.equal(before[plain], value)
    }
    assert changed == {name for name in now if TRAINED[model](name)}
    trained.workload.export(trained.model, tmp_path / "export")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "export").eval()
    assert theirs.config.id2label == dict(enumerate(DIGITS))
    images = trained.workload.batch("test", range(8))["image"]
    processor = json.loads((tmp_path / "export" / "preprocessor_config.json").read_text())
    inputs = getattr(transformers, f"{processor.pop('image_processor_type')}Pil")(**processor)(
        [Image.fromarray(each.numpy()) for each in images.permute(0, 2, 3, 1)], return_tensors="pt"
    )["pixel_values"]
    with torch.no_grad():
        expected = trained.model(images)
        torch.testing.assert_close(theirs(inputs).logits, expected, atol=1e-5, rtol=1e-4)
        back = trained.workload.import_(tmp_path / "export")
        torch.testing.assert_close(back(images), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", [each for each in TRAINED if each])
def test_checkpoints_have_what_is_trained_and_are_used_without_the_data(
    cache: Path, run: Run, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINFLEET_CACHE", str(cache))
    folder = models.vit(tmp_path / "model")
    run(recipe(folder, model), tmp_path / "run")
    saved = tensors_of(tmp_path / "run" / "checkpoints" / f"step-{STEPS:08}")
    names = {name.removeprefix("model.") for name in saved if name.startswith("model.")}
    assert names
    assert all(TRAINED[model](name) for name in names)
    rows = [{"image": np.full((20, 30, 3), value, np.uint8)} for value in (0, 90, 250)]
    of_run = open_predictor(str(tmp_path / "run"), "newest", cache=tmp_path / "no-data")(rows, top=2)
    publish(str(tmp_path / "run"), tmp_path / "published", "newest")
    of_folder = open_predictor(str(tmp_path / "published"), cache=tmp_path / "no-data")(rows, top=2)
    assert [each["label"] for each in of_folder] == [each["label"] for each in of_run]
    assert [each["score"] for each in of_folder] == pytest.approx(
        [each["score"] for each in of_run], rel=1e-4
    )
    assert not (tmp_path / "no-data").exists()


def test_a_published_model_is_fine_tuned_with_its_own_classifier(
    cache: Path, run: Run, tmp_path: Path
) -> None:
    """Its labels are found by name, in whatever order the model has them."""
    labels = ("x", *reversed(DIGITS))
    folder = models.vit(tmp_path / "model", labels)
    workload = vision(folder, cache, ", head: pretrained")
    assert workload.classes == labels
    new = vision(folder, cache)
    assert new.classes == DIGITS
    batches = [each.batch("train", range(40)) for each in (workload, new)]
    named = [
        [of.classes[number] for number in batch["label"].tolist()]
        for of, batch in zip((workload, new), batches, strict=True)
    ]
    assert named[0] == named[1]
    import transformers

    theirs = transformers.AutoModelForImageClassification.from_pretrained(folder)
    kept = workload.build_model().inner.classifier.weight  # type: ignore[union-attr]  # a Classifier
    assert torch.equal(kept, theirs.classifier.weight)
    assert workload.baseline(range(20)) == new.baseline(range(20))
    run(recipe(folder, ", head: pretrained"), tmp_path / "run")
    trained: Any = load_run(str(tmp_path / "run"), "newest", cache=cache)
    assert trained.workload.collections("test")["f1"].num_classes == 11


def test_a_new_classifier_has_new_weights_also_if_the_number_of_classes_is_the_same(
    cache: Path, tmp_path: Path
) -> None:
    import transformers

    folder = models.vit(tmp_path / "model", DIGITS)
    theirs = transformers.AutoModelForImageClassification.from_pretrained(folder)
    made = vision(folder, cache).build_model().inner  # type: ignore[union-attr]  # a Classifier
    assert not torch.equal(made.classifier.weight, theirs.classifier.weight)  # type: ignore[union-attr]
    assert torch.equal(made.vit.layernorm.weight, theirs.vit.layernorm.weight)  # type: ignore[union-attr]


def _without(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def _config(**changes: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _causal(folder: Path) -> None:
    models.causal(folder)


def _of_another_model(folder: Path) -> None:
    """The configuration of a ViT, and the weights of a ResNet."""
    other = models.resnet(folder.parent / "other")
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())


MISTAKES: list[tuple[str, Callable[[Path], Any], str, tuple[str, ...], str]] = [
    ("no config", _without("config.json"), "", (), r"cannot load the model.*has no config\.json"),
    (
        "no processor",
        _without("preprocessor_config.json"),
        "",
        (),
        r"cannot load the image processor.*has no preprocessor_config\.json",
    ),
    ("a language model", _causal, "", (), "is a llama model, not an image classifier"),
    (
        "labels",
        lambda _: None,
        ", head: pretrained",
        (),
        "tells 2 classes apart .*the data has 10, of which it lacks 0, 1, 2 and 7 more",
    ),
    ("size", lambda _: None, "", ("workload.data.size=8",), r"workload\.data\.size=16"),
    ("channels", lambda _: None, "", ("workload.data.channels=1",), r"workload\.data\.channels=3"),
]


@pytest.mark.parametrize(
    ("change", "model", "overrides", "message"), [each[1:] for each in MISTAKES], ids=[x[0] for x in MISTAKES]
)
def test_a_folder_that_does_not_fit_is_one_clear_error_before_training(
    cache: Path,
    tmp_path: Path,
    change: Callable[[Path], Any],
    model: str,
    overrides: tuple[str, ...],
    message: str,
) -> None:
    folder = models.vit(tmp_path / "model")
    change(folder)
    with pytest.raises(InputError, match=f"(?s){message}") as caught:
        vision(folder, cache, model, *overrides)
    assert len(caught.value.problems) == 1


def test_weights_of_another_model_are_rejected(cache: Path, tmp_path: Path) -> None:
    """transformers gives such a model random weights."""
    folder = models.vit(tmp_path / "model")
    _of_another_model(folder)
    with pytest.raises(InputError, match=r"(?s)is not complete.* and 3[0-9] more weights"):
        vision(folder, cache).build_model()
    folder = models.vit(tmp_path / "headless")
    held = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in held.items() if not name.startswith("classifier")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    vision(folder, cache).build_model()
    _config(id2label=dict(enumerate(DIGITS)))(folder)
    with pytest.raises(InputError, match=r"(?s)lack classifier\.bias, classifier\.weight"):
        vision(folder, cache, ", head: pretrained").build_model()


def test_lora_without_linear_layers_is_rejected(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="LoRA finds none of its targets"):
        vision(models.resnet(tmp_path / "model"), cache, ", lora: {rank: 4}").build_model()


RULES = [
    ("workload.model={freeze_encoder: true}", "workload.model.freeze_encoder: does nothing without"),
    ("workload.model={lora: {rank: 2}}", "workload.model.lora: does nothing without"),
    ("workload.model={head: pretrained}", "workload.model.head: does nothing without"),
    (
        "workload.model={pretrained: x, lora: {rank: 2}, freeze_encoder: true}",
        "workload.model.freeze_encoder: an encoder with adapters is not frozen",
    ),
]


@pytest.mark.parametrize(("override", "message"), RULES)
def test_settings_that_do_nothing_are_reported(override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("vision-finetune-tiny", [override])
    assert message in str(caught.value)
