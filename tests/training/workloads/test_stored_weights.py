"""Pretrained models are read tensor by tensor by default: the same model, and no rank holds all of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from tests.training.checkpoint_reader import tensors_of
from tests.training.test_late_initialization import M_MMAP_THRESHOLD, peak_growth
from tests.training.training_runs import (
    StopAfter,
    agrees,
    on_ranks,
    train_all,
)
from tests.training.workloads import models, test_pretrained_images, test_pretrained_speech
from tests.training.workloads.conversations import chat, conversations, make
from tests.training.workloads.test_speech import recipe as speech_recipe
from trainfleet.errors import InputError
from trainfleet.training.checkpoint import step_name
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.strategies import make_strategy
from trainfleet.training.trainer.strategies.init_weights import build
from trainfleet.training.workloads import Workload, make_workload
from trainfleet.training.workloads.stored_weights import StoredWeights, load

__all__ = ["chat", "make"]
Run = Callable[..., RunResult]
Make = Callable[..., Recipe]
COURSE = ("steps=4", "log.every=1", "validation.every=4", "checkpoint.every=2", "optimizer.warmup=1")
IMAGES, CAUSAL = transformers.AutoModelForImageClassification, transformers.AutoModelForCausalLM


class Loaded(StoredWeights):
    """A model of transformers."""

    def __init__(self, kind: Any, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        loaded = load(kind, str(folder), dtype)
        self.inner, self.reads, self.missing = loaded.model, loaded.reads, loaded.missing


def saved(kind: Any, family: str, folder: Path, **config: Any) -> Path:
    """A small model of a family, whose BatchNorms have seen something."""
    torch.manual_seed(0)
    model = kind.from_config(getattr(transformers, f"{family}Config")(**config))
    for each in model.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.running_mean.normal_()  # type: ignore[union-attr]  # has running statistics
            each.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]  # has running statistics
            each.num_batches_tracked.fill_(7)  # type: ignore[union-attr]  # has running statistics
    model.save_pretrained(folder)
    return folder


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, buffers and tensors that are attributes."""
    return {
        f"{name}.{key}": value
        for name, module in model.named_modules()
        for owner in (module._parameters, module._buffers, vars(module))
        for key, value in owner.items()
        if isinstance(value, torch.Tensor)
    }


def require_equal(found: nn.Module, expected: nn.Module) -> None:
    found_tensors, expected_tensors = tensors(found), tensors(expected)
    assert found_tensors.keys() == expected_tensors.keys()
    for name, each in expected_tensors.items():
        assert found_tensors[name].dtype == each.dtype, name
        assert torch.equal(found_tensors[name], each), name
    for name, parameter in expected.named_parameters():
        assert found.get_parameter(name).requires_grad == parameter.requires_grad, name


SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
FAMILIES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "rotary positions, scaled": (
        CAUSAL,
        "Llama",
        SMALL
        | {
            "intermediate_size": 48,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "two rotary embeddings, tied": (
        CAUSAL,
        "Gemma3Text",
        SMALL | {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 16},
    ),
    "learnt positions": (CAUSAL, "GPT2", {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 2}),
    "batch norm": (
        IMAGES,
        "ResNet",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    ),
    "relative positions": (
        IMAGES,
        "Swin",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [1, 2],
            "window_size": 4,
        },
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_weights_buffers_and_outputs_are_those_of_a_model_that_is_read_as_a_whole(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    kind, family, config = FAMILIES[name]
    folder = saved(kind, family, tmp_path, **config)
    whole = Loaded(kind, folder, dtype)
    built = build(lambda: Loaded(kind, folder, dtype), 0, "auto")
    assert built.notes == ()
    assert all(each.is_meta for each in built.model.parameters())
    late = built.materialise()
    require_equal(late, whole)
    given: dict[str, torch.Tensor] = {"input_ids": torch.arange(12)[None]}
    if kind is IMAGES:
        given = {"pixel_values": torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32).to(dtype)}
    with torch.no_grad():
        outputs = [each.eval().get_submodule("inner")(**given).logits for each in (late, whole)]
    assert torch.equal(outputs[0], outputs[1])


def speech(kind: str, more: str, folder: Path) -> Recipe:
    test_pretrained_speech.made(kind, folder)
    model = test_pretrained_speech.model_settings(kind, folder, more)
    return speech_recipe(model, "workload.data.longest=4", *COURSE)


def images(folder: Path, more: str) -> Recipe:
    return test_pretrained_images.recipe(
        models.vit(folder, test_pretrained_images.DIGITS), f", head: pretrained{more}", *COURSE
    )


RECIPES: dict[str, Callable[[Path], Recipe]] = {
    "whisper": partial(speech, "seq2seq", "freeze_encoder: false"),
    "whisper, frozen encoder": partial(speech, "seq2seq", "freeze_encoder: true"),
    "wav2vec2": partial(speech, "ctc", "freeze_encoder: true"),
    "vit": partial(images, more=""),
    "vit, frozen encoder": partial(images, more=", freeze_encoder: true"),
}


def workload_of(recipe: Recipe, cache: Path) -> Workload:
    workload = make_workload(recipe, cache)
    workload.frozen_precision = "bf16"
    return workload


@pytest.mark.parametrize("name", RECIPES)
def test_speech_and_image_models_are_those_that_are_read_as_a_whole(
    tmp_path: Path, cache: Path, name: str
) -> None:
    """With what is not trained in bf16."""
    recipe = RECIPES[name](tmp_path / "model")
    workload = workload_of(recipe, cache)
    assert recipe.meta_init == "auto"
    whole = workload.build_model()
    source = workload.frozen_source()
    built = build(workload.build_model, 0, "auto")
    assert (built.notes, workload.frozen_source()) == ((), source)
    late = built.materialise()
    if name == "wav2vec2":  # not in the files, never trained or used
        late.get_parameter("inner.wav2vec2.masked_spec_embed").data.copy_(
            whole.get_parameter("inner.wav2vec2.masked_spec_embed").data
        )
    require_equal(late, whole)
    batch = workload.batch("train", [0, 1])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        losses = []
        for each in (late, whole):
            torch.manual_seed(0)
            np.random.seed(0)
            losses.append(float(workload.forward_loss(each.train(), batch).loss))
    assert losses[0] == losses[1]


def test_a_new_head_and_adapters_begin_with_the_same_values_under_every_strategy(
    tmp_path: Path, cache: Path
) -> None:
    recipe = speech("new head", "lora: {rank: 4}", tmp_path / "model")
    workload, whole = workload_of(recipe, cache), make_workload(recipe, cache).build_model()
    found = [
        make_strategy(recipe, workload.build_model, RunContext(tmp_path)).module for recipe in [recipe] * 2
    ]
    require_equal(found[0], found[1])
    head = found[0].get_parameter("inner.base_model.model.lm_head.weight").detach()
    other = whole.get_parameter("inner.base_model.model.lm_head.weight").detach()
    assert float(head.std()) == pytest.approx(float(other.std()), rel=0.2)
    drawn = {name: each for name, each in found[0].named_parameters() if "lora_" in name}
    assert all(bool(each.any()) == ("lora_A" in name) for name, each in drawn.items())


def test_weights_that_transformers_has_renamed_are_found(tmp_path: Path) -> None:
    """As in older files, and in those of a base model."""
    folder = models.wav2vec2(tmp_path / "old")
    old = {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): each
        for name, each in load_file(folder / "model.safetensors").items()
    }
    assert any(name.endswith("weight_g") for name in old)
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    kind = transformers.AutoModelForCTC
    late = build(lambda: Loaded(kind, folder), 0, meta=True)
    assert isinstance(late.model, Loaded)
    assert late.model.missing <= {"wav2vec2.masked_spec_embed"}
    whole = Loaded(kind, folder)
    name = "inner.wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight.original0"
    assert torch.equal(late.materialise().get_parameter(name), whole.get_parameter(name))

    folder = models.vit(tmp_path / "base")
    transformers.ViTModel.from_pretrained(folder).save_pretrained(folder)
    late = build(lambda: Loaded(IMAGES, folder), 0, meta=True)
    assert isinstance(late.model, Loaded)
    assert late.model.missing == {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize("case", ["merged", "without safetensors", "incomplete", "another shape"])
def test_files_that_only_transformers_can_read_are_read_as_a_whole(
    tmp_path: Path, make: Make, chat: Path, run: Run, case: str
) -> None:
    """Which a warning says; `true` refuses them."""
    folder = models.chat(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    if case == "merged":  # the matrices of experts, which its files have one by one
        size = SMALL | {"vocab_size": 312, "intermediate_size": 48, "num_key_value_heads": 2}
        saved(CAUSAL, "Mixtral", folder, num_local_experts=2, **size)
    elif case == "without safetensors":
        torch.save(weights, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    else:
        del weights["model.norm.weight"]
        if case == "another shape":
            weights["model.norm.weight"] = torch.ones(16)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    recipe = make(conversations(60), f"workload.model.pretrained={folder}", *COURSE)
    always = recipe.model_copy(update={"sharding": recipe.sharding.model_copy(update={"meta_init": True})})
    with pytest.raises(InputError, match="the model does not support meta_init"):
        run(always, tmp_path / "refused")
    if case == "another shape":
        with pytest.raises(Exception, match=r"size mismatch|mismatched"):
            run(recipe, tmp_path / "run")
        return
    events: list[tuple[str, str]] = []
    assert run(recipe, tmp_path / "run", on_event=lambda *event: events.append(event)).step == 4
    warnings = [text for what, text in events if what == "warning"]
    assert warnings[0].startswith("each worker reads the whole pretrained model into its memory: ")


def packed(make: Make, chat: Path, *overrides: str) -> Recipe:
    recipe = make(
        conversations(80),
        f"workload.model.pretrained={chat}",
        *COURSE,
        "batch.global_batch=4",
        "batch.micro_batch=2",
        *overrides,
    )
    assert recipe.workload.data.conversations.packing  # type: ignore[attr-defined]  # of lm
    return recipe


def with_meta(recipe: Recipe, meta: bool | str) -> Recipe:
    sharding = recipe.sharding.model_copy(update={"meta_init": meta})
    return recipe.model_copy(update={"strategy": "fsdp", "sharding": sharding})


@pytest.mark.parametrize("name", ["packed", "whisper", "vit"])
@pytest.mark.deep
def test_two_ranks_train_the_same_model_and_resume_in_both_directions(
    tmp_path: Path, cache: Path, make: Make, chat: Path, name: str
) -> None:
    recipe = packed(make, chat) if name == "packed" else RECIPES[name](tmp_path / "model")
    whole, late = with_meta(recipe, meta=False), with_meta(recipe, "auto")
    runs = tmp_path / "runs"
    found = train_all({"whole": whole, "late": late}, runs, cache, 2)
    agrees(found["late"], found["whole"])
    states = [tensors_of(runs / each / "checkpoints" / step_name(4)) for each in ("late", "whole")]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    for first, second in ((late, whole), (whole, late)):
        folder = tmp_path / ("late first" if first is late else "whole first")
        train_stopped(first, folder, cache)
        agrees(train_all({"run": second}, folder, cache, 2)["run"], found["whole"])


def train_stopped(recipe: Recipe, folder: Path, cache: Path) -> None:
    """Two ranks train the first two steps."""

    def work(rank: int) -> int:
        from trainfleet.training.trainer.loop import train

        place = (rank, 2, rank, 2)
        context = RunContext(folder / "run", *place, cache=cache, should_stop=StopAfter(2))
        return train(recipe, context).step

    folder.mkdir()
    assert on_ranks(work, 2, folder) == [2, 2]


def large(name: str, folder: Path) -> int:
    """Replace the tiny model in a folder by one of some MB in equal blocks; returns its bytes in fp32."""
    torch.manual_seed(0)
    if name == "packed":
        config = transformers.AutoConfig.from_pretrained(folder)
        config.update({"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 12})
        config.update({"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 128})
        model: Any = CAUSAL.from_config(config)
    elif name == "whisper":
        config = transformers.AutoConfig.from_pretrained(folder)
        config.update({"d_model": 384, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536})
        config.update({"encoder_layers": 6, "decoder_layers": 6})
        model = transformers.WhisperForConditionalGeneration(config)
    else:
        config = transformers.AutoConfig.from_pretrained(folder)
        config.update({"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 12})
        model = transformers.ViTForImageClassification(config)
    model.save_pretrained(folder)
    models.halve(folder)  # in fp32, a model that is read as a whole may be a view of its file
    return sum(each.numel() * 4 for each in model.parameters())


@pytest.mark.deep
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("name", ["packed", "whisper", "vit"])
def test_no_rank_holds_a_whole_model(tmp_path: Path, cache: Path, make: Make, name: str) -> None:
    """With fsdp. With ddp and a frozen base in bf16, none holds a copy in fp32."""
    folder = tmp_path / "model"
    if name == "packed":
        recipe = packed(make, models.chat(folder), "workload.model.lora={rank: 2, targets: [q_proj]}")
    elif name == "whisper":
        recipe = speech("seq2seq", "lora: {rank: 2, targets: [q_proj]}", folder)
    else:
        recipe = images(folder, ", lora: {rank: 2, targets: [q_proj, query]}")
    size = large(name, folder)
    cases: dict[str, tuple[str, bool | str, str]] = {
        "first": ("fsdp", "auto", "fp32"),  # imports
        "sharded": ("fsdp", "auto", "fp32"),
        "whole": ("fsdp", False, "fp32"),
        "half": ("ddp", "auto", "bf16"),
        "half at once": ("ddp", False, "bf16"),
    }

    def check(rank: int) -> dict[str, float]:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 18)
        grown = {}
        for each, (strategy, meta, precision) in cases.items():
            update = {"strategy": strategy, "precision": precision}
            case = with_meta(recipe, meta).model_copy(update=update)
            workload = make_workload(case, cache)
            workload.frozen_precision = case.precision
            # DDP also copies the model, in parts of 250 MB, to give every rank that of the first.
            context = RunContext(tmp_path, rank, 4, rank, 4) if strategy == "fsdp" else RunContext(tmp_path)

            def work(
                case: Recipe = case, workload: Workload = workload, context: RunContext = context
            ) -> Any:
                made = make_strategy(case, workload.build_model, context)
                workload.check_model(made.module)
                return made

            grown[each] = peak_growth(work) / size
        return grown

    for grown in on_ranks(check, 4, tmp_path):
        assert grown["whole"] > 0.9
        assert grown["sharded"] < 0.6
        assert grown["half"] < 0.75
