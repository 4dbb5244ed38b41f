"""Weights in bf16, and how much memory loading takes: the whole model once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainfleet.errors import InputError
from trainfleet.training.checkpoint import Checkpoints, files
from trainfleet.training.evaluate import evaluate, stored
from trainfleet.training.inference import loaded
from trainfleet.training.inference.loaded import OpenedRun, empty_model, load_run
from trainfleet.training.inference.predictor import Predictor, open_predictor
from trainfleet.training.publish.export import publish
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import CheckpointConfig, Recipe
from trainfleet.training.stores import open_store
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.loop import train
from trainfleet.training.workloads.lm.settings import LmSettings
from trainfleet.training.workloads.lm.workload import LanguageModel

ROW = {"text": "the tensor"}


def dtypes(predictor: Predictor) -> set[torch.dtype]:
    return {each.dtype for each in predictor.model.parameters()}


def test_a_run_and_its_publication_are_loaded_in_bf16_with_the_nearest_weights(pictures_copy: Path) -> None:
    exact = load_run(str(pictures_copy)).model.state_dict()
    for folder in (pictures_copy, publish(str(pictures_copy)).folder):
        half = open_predictor(str(folder), precision="bf16")
        assert dtypes(half) == {torch.bfloat16}
        for name, value in half.model.state_dict().items():
            assert torch.equal(value, exact[name].to(torch.bfloat16)), name
        assert half([{"image": [[0] * 8] * 8}])[0]["label"] in "0123456789"
        assert dtypes(open_predictor(str(folder))) == {torch.float32}


@pytest.mark.deep
def test_a_language_model_predicts_and_is_evaluated_in_bf16(run_copy: Path) -> None:
    half = open_predictor(str(run_copy), precision="bf16")
    assert dtypes(half) == {torch.bfloat16}
    assert isinstance(half([ROW], max_tokens=4)[0]["text"], str)
    exact, rounded = evaluate(str(run_copy)), evaluate(str(run_copy), precision="bf16")
    assert exact.metrics != rounded.metrics
    assert rounded.metrics["test/loss"] == pytest.approx(exact.metrics["test/loss"], rel=0.02)
    assert Path(rounded.file).name == f"test-{rounded.step}-bf16.json"
    assert stored(exact.checkpoint, exact.step, "test") == exact  # what `publish` may reuse


def test_fp32_is_not_what_a_training_in_bf16_computes(
    recipe: Recipe, own_cache: Path, tmp_path: Path
) -> None:
    changed = recipe.model_copy(update={"precision": "bf16", "name": "half"})
    threads = torch.get_num_threads()
    train(changed, RunContext(tmp_path / "run", cache=own_cache))
    torch.set_num_threads(threads)
    seen: dict[str | None, torch.dtype] = {}
    for precision in (None, "fp32"):
        found = open_predictor(str(tmp_path / "run"), precision=precision)  # type: ignore[arg-type]  # a literal
        model: Any = found.model
        model.blocks[0].attention.out.register_forward_hook(
            lambda _, __, out, precision=precision: seen.update({precision: out.dtype})
        )
        found([ROW], max_tokens=1)
    assert seen == {None: torch.bfloat16, "fp32": torch.float32}


def test_a_workload_without_the_precision_is_named(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainfleet.training.workloads.vision.workload import Vision

    monkeypatch.setattr(Vision, "precisions", ("fp32",))
    for use in (
        lambda: open_predictor(str(pictures), precision="bf16", load=False),
        lambda: evaluate(str(pictures), precision="bf16"),
    ):
        with pytest.raises(InputError, match=r"--precision: bf16 is not supported by the workload `vision`"):
            use()


PEAK = """
import sys, threading
from pathlib import Path
from tests.training.post_training.test_precision import large, opened, small

def anonymous():
    line = next(each for each in open("/proc/self/status") if each.startswith("RssAnon"))
    return int(line.split()[1]) << 10

folder, kind, precision = Path(sys.argv[1]), sys.argv[2], sys.argv[3] or None

def load(settings, name):
    run = opened(settings, folder / name)
    if kind == "run":
        return run.load("cpu", precision).model
    run.workload.precision = precision or "fp32"
    return run.workload.import_(folder / name / "published")

load(small(), "small")  # whatever is imported and allocated once
before, peak, done = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())

thread = threading.Thread(target=watch)
thread.start()
model = load(large(), "large")
done.set()
thread.join()
print((max(peak, anonymous()) - before) / sum(each.numel() * 4 for each in model.parameters()))
"""


def large() -> LmSettings:
    return LmSettings.model_validate({"name": "lm", "model": {"layers": 12, "width": 512, "heads": 8}})


def small() -> LmSettings:
    return LmSettings.model_validate({"name": "lm", "model": {"layers": 1, "width": 16, "heads": 2}})


def opened(settings: LmSettings, folder: Path) -> OpenedRun:
    """A run with a checkpoint in `folder`, opened without its weights."""
    files.SPAN_BYTES = 1 << 20  # what is read at a time, which does not grow with the model
    workload = LanguageModel.for_inference(settings, {}, None)
    checkpoints = Checkpoints(open_store(str(folder)), CheckpointConfig(), lambda *_: None)
    recipe = load_recipe("lm-tiny").model_copy(update={"workload": settings})
    return OpenedRun(recipe, workload, 1, str(folder), checkpoints, "step-00000001", None)


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_loading_takes_the_memory_of_the_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anonymous memory at its peak, in sizes of the fp32 model (150 MB), without mapped pages of files."""
    monkeypatch.setattr(files, "SPAN_BYTES", files.SPAN_BYTES)
    for settings, name in ((small(), "small"), (large(), "large")):
        run = opened(settings, tmp_path / name)
        model = empty_model(run.workload, "cpu")
        for each in model.parameters():
            torch.nn.init.constant_(each, 0.5)
        run.checkpoints.save(1, {"model": model.state_dict()}, {}, {}, {})
        run.checkpoints.finish()
        run.workload.export(model, tmp_path / name / "published")
        del model

    def peak(kind: str, precision: str) -> float:
        command = [sys.executable, "-c", PEAK, str(tmp_path), kind, precision]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    found = {(kind, each): peak(kind, each) for kind in ("run", "published") for each in ("", "bf16")}
    assert found["run", ""] < 1.4, found
    assert found["published", ""] < 1.2, found
    assert found["run", "bf16"] < 0.9, found
    assert found["published", "bf16"] < 0.8, found


def test_a_model_that_is_larger_than_its_device_is_rejected_before_it_is_loaded(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve`, `predict` and `evaluate` load a whole model by it. Half the bytes fit with bf16."""
    whole = load_run(str(run_dir), "newest").model
    needed = sum(each.numel() * each.element_size() for each in (*whole.parameters(), *whole.buffers()))
    monkeypatch.setattr(loaded, "memory_of", lambda _: needed - 1)
    monkeypatch.setattr(torch.nn.Module, "to_empty", lambda *_, **__: pytest.fail("memory was allocated"))
    with pytest.raises(InputError, match=r"(?s)does not fit one device.*serve --engine vllm"):
        open_predictor(str(run_dir), "newest")
    monkeypatch.undo()
    monkeypatch.setattr(loaded, "memory_of", lambda _: needed - 1)
    assert open_predictor(str(run_dir), "newest", precision="bf16").model is not None
