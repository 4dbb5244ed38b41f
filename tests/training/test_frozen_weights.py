"""Checkpoints of LoRA runs have what is trained, and are loaded with the pretrained model that was read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import hub

from tests.training.checkpoint_reader import tensors_of
from tests.training.training_runs import StopAfter, metric_values, rows_of
from tests.training.workloads import models
from tests.training.workloads.test_speech import recipe as speech_recipe
from trainfleet.errors import InputError
from trainfleet.training import evaluate
from trainfleet.training.inference.loaded import load_run
from trainfleet.training.inference.predictor import open_predictor
from trainfleet.training.publish.export import publish
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer import frozen, loop
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.frozen import KEY, frozen_names
from trainfleet.training.trainer.state import RunState
from trainfleet.training.trainer.strategies import make_strategy
from trainfleet.training.workloads import make_workload
from trainfleet.training.workloads.lm.workload import LanguageModel
from trainfleet.training.workloads.model_folder import source_digest

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
STOPPED, STEPS = 3, 6
FILE_OVERHEAD = 3000
"""Bytes of torch's format around each tensor."""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return models.causal(tmp_path / "base")


@pytest.fixture
def lora(tiny: Make, base: Path) -> Make:
    def make(*overrides: str) -> Recipe:
        return tiny(
            f"workload.model.pretrained={base}",
            "workload.model.lora={rank: 2, targets: [q_proj, v_proj]}",
            "workload.data.tokens=model",
            "workload.model.context=16",
            f"steps={STEPS}",
            "optimizer.lr=1e-2",
            *overrides,
        )

    return make


def newest(run_dir: Path) -> Path:
    return max((run_dir / "checkpoints").iterdir())


def losses(run_dir: Path) -> list[float]:
    return metric_values(rows_of(run_dir), "loss")


def change_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name] = weights[name] + 0.1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_lora_checkpoint_has_the_adapters_only_and_resumes_with_the_same_losses(
    tmp_path: Path, cache: Path, lora: Make, run: Run, strategy: str
) -> None:
    recipe = lora(f"strategy={strategy}")
    run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "parts", should_stop=StopAfter(STOPPED))
    assert run(recipe, tmp_path / "parts").resumed_from == STOPPED
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")

    model = load_run(str(tmp_path / "parts"), "newest", cache=cache).model
    trained = {name: each for name, each in model.named_parameters() if name not in frozen_names(model)}
    saved = tensors_of(newest(tmp_path / "parts"))
    weights = {name for name in saved if name.startswith("model.")}
    assert weights == {f"model.{name}" for name in trained}
    assert all(torch.equal(saved[f"model.{name}"], each) for name, each in trained.items())
    # A weight and its two moments, each of four bytes.
    expected = sum(12 * each.numel() for each in trained.values())
    size = sum(path.stat().st_size for path in newest(tmp_path / "parts").glob("*.distcp"))
    assert expected < size < expected + FILE_OVERHEAD * len(saved)
    assert size < (tmp_path / "base" / "model.safetensors").stat().st_size


def test_a_lora_run_is_evaluated_published_and_predicts_as_it_was_trained(
    tmp_path: Path, cache: Path, lora: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINFLEET_CACHE", str(cache.parent))
    recipe = lora("publish={gates: {validation/loss: {max: 100}}, require_test: false}", "checkpoint.every=6")
    result = run(recipe, tmp_path / "run")
    count = recipe.validation.samples
    found = evaluate.evaluate(str(tmp_path / "run"), "validation", "newest", samples=count)
    assert found.metrics["validation/loss"] == pytest.approx(result.metrics["validation/loss"], rel=1e-6)
    published = publish(str(tmp_path / "run"), tmp_path / "published", "newest")
    rows = [{"text": "the gradient"}]
    of_run = open_predictor(str(tmp_path / "run"), "newest", cache=cache)
    of_export = open_predictor(str(published.folder), cache=cache)
    assert of_run(rows, temperature=0, max_tokens=4) == of_export(rows, temperature=0, max_tokens=4)
    exported = set(load_file(published.folder / "model.safetensors"))
    assert exported == set(load_file(tmp_path / "base" / "model.safetensors"))


def test_a_checkpoint_is_refused_with_another_pretrained_model(
    tmp_path: Path, cache: Path, lora: Make, run: Run, base: Path
) -> None:
    run(lora(), tmp_path / "run", should_stop=StopAfter(STOPPED))
    change_a_weight(base)
    for action in (
        lambda: run(lora(), tmp_path / "run"),
        lambda: load_run(str(tmp_path / "run"), "newest", cache=cache),
    ):
        with pytest.raises(InputError, match="the pretrained model changed since the training") as caught:
            action()
        (problem,) = caught.value.problems
        assert problem.where == "workload.model.pretrained"
        assert "step-00000003" in problem.what


def test_a_run_resumes_with_a_copy_of_its_pretrained_model(
    tmp_path: Path, lora: Make, run: Run, base: Path
) -> None:
    run(lora(), tmp_path / "whole")
    run(lora(), tmp_path / "moved", should_stop=StopAfter(STOPPED))
    base.rename(tmp_path / "elsewhere")
    moved = lora(f"workload.model.pretrained={tmp_path / 'elsewhere'}")
    with pytest.raises(InputError, match=r"workload\.model\.pretrained"):
        run(moved, tmp_path / "moved")
    run(moved, tmp_path / "moved", allow_changes=("workload.model.pretrained",))
    assert losses(tmp_path / "moved") == losses(tmp_path / "whole")


def test_a_checkpoint_of_an_older_version_has_the_base_and_keeps_it(
    tmp_path: Path, cache: Path, lora: Make, run: Run, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RunState.shared_values
    run(lora(), tmp_path / "whole")
    with monkeypatch.context() as older:
        older.setattr(LanguageModel, "frozen_source", lambda self: None)
        older.setattr(
            RunState,
            "shared_values",
            lambda self: {key: value for key, value in real(self).items() if key != KEY},
        )
        run(lora(), tmp_path / "old", should_stop=StopAfter(STOPPED))
    change_a_weight(base)  # which it does not read
    run(lora(), tmp_path / "old")
    assert losses(tmp_path / "old") == losses(tmp_path / "whole")
    names = tensors_of(newest(tmp_path / "old"))
    assert any("mlp.up_proj" in name for name in names)
    assert load_run(str(tmp_path / "old"), "newest", cache=cache).step == STEPS


def test_lora_refuses_a_model_that_lacks_weights(tmp_path: Path, lora: Make, run: Run, base: Path) -> None:
    weights = load_file(base / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight"):
        run(lora(), tmp_path / "run")
    run(lora("workload.model.lora=null", "steps=1", "optimizer.warmup=0"), tmp_path / "full")


def test_the_digest_is_of_the_files_that_are_read(base: Path) -> None:
    first = source_digest(str(base))
    assert first is not None
    (base / "pytorch_model.bin").write_bytes(b"not read")
    (base / "README.md").write_text("not read")
    assert source_digest(str(base)) == first
    change_a_weight(base)
    assert source_digest(str(base)) != first
    (base / "adapter_config.json").write_text("{}")
    assert source_digest(str(base)) is None
    assert source_digest(str(base / "nothing")) is None


def test_a_model_of_the_hub_has_the_digest_of_its_files_in_the_cache(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout of a download, made here: nothing is downloaded."""
    revision = "a" * 40
    entry = tmp_path / "hub" / "models--someone--llama"
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text(revision)
    (entry / "blobs").mkdir()
    (entry / "snapshots" / revision).mkdir(parents=True)
    for number, file in enumerate(sorted(base.iterdir())):
        blob = entry / "blobs" / str(number)
        blob.write_bytes(file.read_bytes())
        (entry / "snapshots" / revision / file.name).symlink_to(blob)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert source_digest("someone/llama") == source_digest(str(base))
    assert source_digest("someone/other") is None


@pytest.mark.parametrize(("other", "agreed"), [("a", True), ("b", False)])
def test_machines_with_different_models_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, agreed: bool
) -> None:
    class OneLora(LanguageModel):
        def __init__(self) -> None: ...

        def frozen_source(self) -> str:
            return "a"

    # A stand-in for the ranks of another machine: the second one of each machine reads nothing.
    others = [(False, None), (True, other), (False, None)]
    monkeypatch.setattr(frozen, "gather", lambda value, *_: [value, *others])
    model = torch.nn.Linear(2, 2).requires_grad_(False)
    if agreed:
        assert frozen.agreed_source(OneLora(), model, RunContext(tmp_path)) == "a"
        assert frozen.agreed_source(OneLora(), torch.nn.Linear(2, 2), RunContext(tmp_path)) is None
    else:
        with pytest.raises(InputError, match="2 different copies of the pretrained model"):
            frozen.agreed_source(OneLora(), model, RunContext(tmp_path))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["ctc", "seq2seq"])
def test_a_speech_checkpoint_leaves_the_frozen_encoder_out_and_resumes_with_the_same_losses(
    tmp_path: Path, cache: Path, run: Run, kind: str
) -> None:
    folder = (models.wav2vec2 if kind == "ctc" else models.whisper)(tmp_path / "model")
    model = f"{{kind: {kind}, pretrained: {folder}, alphabet: null, most_tokens: 6, freeze_encoder: true}}"
    recipe = speech_recipe(
        f"workload.model={model}",
        f"steps={STEPS}",
        "log.every=1",
        "validation.every=6",
        "workload.data.longest=4",
    )
    run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "parts", should_stop=StopAfter(STOPPED))
    saved = {name for name in tensors_of(newest(tmp_path / "parts")) if name.startswith("model.")}
    assert run(recipe, tmp_path / "parts").resumed_from == STOPPED
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")

    loaded = load_run(str(tmp_path / "parts"), "newest", cache=cache).model
    frozen = frozen_names(loaded)
    encoder = "feature_extractor" if kind == "ctc" else "encoder.layers"
    assert any(encoder in name for name in frozen)
    assert saved == {f"model.{name}" for name in loaded.state_dict() if name not in frozen}


def test_a_speech_checkpoint_has_frozen_weights_that_the_model_lacks(
    tmp_path: Path, cache: Path, run: Run
) -> None:
    """They are random, so a resumed run would have others."""
    folder = models.wav2vec2(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    lacking = next(name for name in weights if "masked_spec_embed" in name)
    del weights[lacking]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model = f"{{kind: ctc, pretrained: {folder}, alphabet: null, freeze_encoder: true}}"
    run(speech_recipe(f"workload.model={model}", "steps=2", "validation.every=2"), tmp_path / "run")
    assert f"model.inner.{lacking}" in tensors_of(newest(tmp_path / "run"))


def test_a_pretrained_model_has_dropout_from_the_first_step_on(
    tmp_path: Path, lora: Make, run: Run, base: Path
) -> None:
    """transformers loads it in evaluation mode. A run that resumes is in training mode as the whole run was."""
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    recipe = lora("validation.every=2")
    run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "parts", should_stop=StopAfter(STOPPED))
    run(recipe, tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_base_of_a_run_in_bf16_is_bf16_and_its_adapters_are_not(
    tmp_path: Path, cache: Path, lora: Make, run: Run, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """The losses are about those in fp32, a resume has the same ones, and the checkpoint has fp32 adapters."""
    types: dict[bool, set[torch.dtype]] = {True: set(), False: set()}

    def noted(*args: Any) -> Any:
        made = make_strategy(*args)
        for each in made.module.parameters():
            types[each.requires_grad].add(each.dtype)
        return made

    monkeypatch.setattr(loop, "make_strategy", noted)
    recipe = lora("precision=bf16", f"strategy={strategy}")
    run(recipe, tmp_path / "whole")
    assert types == {True: {torch.float32}, False: {torch.bfloat16}}
    run(recipe, tmp_path / "parts", should_stop=StopAfter(STOPPED))
    run(recipe, tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert {
        each.dtype for name, each in tensors_of(newest(tmp_path / "parts")).items() if "lora" in name
    } == {torch.float32}
    run(lora(f"strategy={strategy}"), tmp_path / "fp32")
    assert losses(tmp_path / "whole") == pytest.approx(losses(tmp_path / "fp32"), rel=0.01)


def test_a_weight_that_is_not_trained_has_two_thirds_of_the_operations(
    cache: Path, lora: Make, base: Path
) -> None:
    """Forward, and backward to its inputs: it has no gradient of its own."""
    recipe = lora()
    workload = make_workload(recipe, cache)
    model = workload.build_model()
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    whole = sum(each.numel() for each in model.parameters())
    attention = 12 * 2 * 32 * 16  # layers, width, context
    assert workload.flops_per_token == 6 * trained + 4 * (whole - trained) + attention
