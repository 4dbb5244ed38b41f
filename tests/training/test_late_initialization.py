"""Late initialization gives the weights of an early one, and never holds the whole model on a rank."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from tests.training.checkpoint_reader import tensors_of
from tests.training.training_runs import (
    StopAfter,
    agrees,
    metric_values,
    on_ranks,
    recipe_on,
    rows_of,
    train_all,
)
from tests.training.workloads import models
from trainfleet.errors import InputError
from trainfleet.training.checkpoint import CheckpointError, Checkpoints, step_name
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.state import RunState
from trainfleet.training.trainer.strategies import init_weights, make_strategy
from trainfleet.training.trainer.strategies.init_weights import build
from trainfleet.training.workloads.lm import pretrained
from trainfleet.training.workloads.lm.settings import GptSettings
from trainfleet.training.workloads.settings import LoraSettings

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]


@pytest.mark.deep
def test_late_initialization_gives_the_same_weights_with_every_strategy(
    tmp_path: Path, text_folder: Path, cache: Path
) -> None:
    recipes = {
        name: recipe_on(text_folder, f"strategy={name}", "sharding.meta_init=true")
        for name in ("ddp", "fsdp", "hsdp")
    }
    two = train_all(recipes, tmp_path / "two", cache, 2)
    three = train_all({"fsdp": recipes["fsdp"]}, tmp_path / "three", cache, 3)
    for rows in (two["fsdp"], two["hsdp"], three["fsdp"]):
        agrees(rows, two["ddp"])


M_MMAP_THRESHOLD = -3  # malloc.h


def wide(layers: int = 24, width: int = 512) -> nn.Module:
    """About 100 MB of weights in equal blocks. Nothing is computed with them."""
    return nn.Sequential(
        *(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )
    )


def peak_growth(work: Callable[[], Any]) -> int:
    """The largest growth of this process's memory during `work`, in bytes (Linux)."""

    def status(name: str) -> int:
        line = next(
            line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)
        )
        return int(line.split()[1]) * 1024

    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    kept = work()
    grown = status("VmHWM") - before
    del kept
    return grown


@pytest.mark.deep
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_late_initialization_never_holds_the_whole_model_on_a_rank(tmp_path: Path, tiny: Make) -> None:
    size = sum(each.numel() * 4 for each in wide().parameters())

    def check(rank: int) -> dict[str, float]:
        # Each tensor of a large model has its own pages, which are freed with it. Do the same for tensors of
        # 2 MB.
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 18)
        grown = {}
        make_strategy(
            tiny("strategy=fsdp", "sharding.meta_init=true"),
            lambda: wide(2, 8),
            RunContext(tmp_path, rank, 4, rank, 4),
        )  # so that the imports are not measured
        for name, overrides in {
            "late": ("strategy=fsdp", "sharding.meta_init=true"),
            "at once": ("strategy=ddp",),
        }.items():
            context = RunContext(tmp_path, rank, 4, rank, 4)
            recipe = tiny(*overrides)
            grown[name] = (
                peak_growth(lambda recipe=recipe, context=context: make_strategy(recipe, wide, context))
                / size
            )  # type: ignore[misc]
        return grown

    for grown in on_ranks(check, 4, tmp_path):
        assert grown["at once"] > 0.9
        assert grown["late"] < 0.6  # a quarter, one block, and the reserve of the allocator


def test_a_late_weight_depends_only_on_its_name() -> None:
    def model(layers: int) -> nn.Module:
        parts: list[nn.Module] = [nn.Linear(8, 8) for _ in range(layers)]
        parts.append(nn.BatchNorm1d(8))
        nn.init.trunc_normal_(parts[0].weight, std=0.02)  # type: ignore[arg-type]
        nn.init.orthogonal_(parts[1].weight)  # type: ignore[arg-type]
        return nn.Sequential(*parts)

    few, many = (build(lambda layers=layers: model(layers), 3, meta=True).materialise() for layers in (2, 3))  # type: ignore[misc]
    other = build(lambda: model(2), 4, meta=True).materialise()
    for name in ("0.weight", "0.bias", "1.weight"):
        assert torch.equal(few.get_parameter(name), many.get_parameter(name)), name
        assert not torch.equal(few.get_parameter(name), other.get_parameter(name)), name
    assert float(few.get_parameter("0.weight").detach().std()) == pytest.approx(0.02, rel=0.5)
    weight = few.get_parameter("1.weight")
    assert torch.allclose(weight @ weight.T, torch.eye(8), atol=1e-5)
    assert few.get_buffer("2.running_var").tolist() == [1.0] * 8
    assert int(few.get_buffer("2.num_batches_tracked")) == 0
    assert not any(tensor.is_meta for tensor in (*few.parameters(), *few.buffers()))


def test_a_constant_buffer_is_initialized_late_too() -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("taps", torch.tensor([1.0, 2.0, 1.0]) / torch.arange(1, 4))

    assert build(Filter, 0, meta=True).materialise().get_buffer("taps").tolist() == pytest.approx(
        [1.0, 1.0, 1 / 3]
    )


def test_a_shared_tensor_is_initialized_once() -> None:
    def model() -> nn.Module:
        both = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16, bias=False))
        both[1].weight = both[0].weight
        return both

    made = build(model, 0, meta=True).materialise()
    assert made.get_parameter("0.weight") is made.get_parameter("1.weight")


def test_a_model_that_reads_its_weights_in_init_is_rejected_only_for_late_initialization() -> None:
    def model() -> nn.Module:
        layer = nn.Linear(2, 2)
        layer.weight.data.fill_(float(layer.bias.detach().sum()))
        return layer

    with pytest.raises(InputError, match="the model does not support meta_init"):
        build(model, 0, meta=True)
    assert build(model, 0, meta=False).materialise().get_parameter("weight").shape == (2, 2)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of tensors whose initial values are drawn."""
    names: list[str] = []
    replay = init_weights._Record.replay

    def recorded(self: Any, name: str, tensor: torch.Tensor) -> torch.Tensor:
        names.append(name)
        return replay(self, name, tensor)

    monkeypatch.setattr(init_weights._Record, "replay", recorded)
    return names


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_resumed_run_draws_no_weight_and_is_bit_equal(
    tmp_path: Path, tiny: Make, run: Callable[..., RunResult], drawn: list[str], strategy: str
) -> None:
    recipe = tiny(
        f"strategy={strategy}", "sharding.meta_init=true", "workload.model.dropout=0.1", "ema.decay=0.9"
    )
    run(recipe, tmp_path / "whole")
    assert "embedding.weight" in drawn
    run(recipe, tmp_path / "parts", should_stop=StopAfter(5))
    drawn.clear()
    assert run(recipe, tmp_path / "parts").resumed_from == 5
    whole, parts = (
        tensors_of(tmp_path / each / "checkpoints" / step_name(12)) for each in ("whole", "parts")
    )
    assert drawn == [], "lm has no tensor that a checkpoint lacks"
    losses = [metric_values(rows_of(tmp_path / each), "loss") for each in ("whole", "parts")]
    assert losses[0] == losses[1]
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_resumed_run_whose_checkpoint_is_gone_ends(
    tmp_path: Path, tiny: Make, run: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny("strategy=fsdp", "sharding.meta_init=true")
    run(recipe, tmp_path, should_stop=StopAfter(5))
    monkeypatch.setattr(Checkpoints, "choose", lambda self: None)
    with pytest.raises(CheckpointError, match="the model has no weights"):
        run(recipe, tmp_path)


def test_a_pretrained_run_whose_checkpoint_is_gone_begins_again(
    tmp_path: Path, tiny: Make, run: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `sharding.meta_init: auto`, its weights are those of the files."""
    model = (f"workload.model.pretrained={models.causal(tmp_path / 'model')}", "workload.data.tokens=model")
    recipe = tiny(*model, "workload.model.context=16", "steps=4", "optimizer.warmup=1")
    run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "run", should_stop=StopAfter(2))
    monkeypatch.setattr(Checkpoints, "choose", lambda self: None)
    assert run(recipe, tmp_path / "run").resumed_from == 0
    last = [metric_values(rows_of(tmp_path / each), "loss")[-4:] for each in ("run", "whole")]
    assert last[0] == last[1]


def test_a_weight_that_is_not_loaded_ends_the_run(
    tmp_path: Path, tiny: Make, run: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny("strategy=fsdp", "sharding.meta_init=true")
    run(recipe, tmp_path, should_stop=StopAfter(5))
    tensors = RunState.tensors

    def without_norm(self: RunState) -> Any:
        found = tensors(self)
        model = {name: each for name, each in found["model"].items() if name != "norm.weight"}
        return {**found, "model": model}

    monkeypatch.setattr(RunState, "tensors", without_norm)
    monkeypatch.setattr("trainfleet.training.checkpoint.checkpoints.require_fit", lambda *_: None)
    with pytest.raises(CheckpointError, match=r"does not have norm\.weight"):
        run(recipe, tmp_path)


def test_only_what_every_checkpoint_has_is_left_out() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.tied, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.tied.weight = self.first.weight
            self.frozen.requires_grad_(False)
            self.register_buffer("kept", torch.arange(1, 4))
            self.register_buffer("made", torch.arange(1, 4), persistent=False)

    model = build(Model, 3, meta=True, resumes=True)
    assert model.not_drawn == {"first.weight", "first.bias", "tied.weight", "tied.bias", "kept"}
    made = model.materialise()
    assert all(not each.any() for name, each in made.state_dict().items() if name in model.not_drawn)
    assert made.get_parameter("frozen.weight").any()
    assert made.get_buffer("made").tolist() == [1, 2, 3]
    assert made.get_parameter("first.weight") is made.get_parameter("tied.weight")


@pytest.mark.parametrize("adapters", [False, True])
def test_a_pretrained_model_is_read_tensor_by_tensor_with_the_same_weights(
    tmp_path: Path, adapters: bool
) -> None:
    """Those of the files; adapters keep their initial values in fp32."""
    folder = models.causal(tmp_path / "model")
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    whole.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    lora = LoraSettings(rank=2, targets=("q_proj",)) if adapters else None
    settings, dtype = GptSettings(pretrained=str(folder), context=16, lora=lora), torch.bfloat16
    expected = pretrained.build(settings, dtype)
    made = build(lambda: pretrained.build(settings, dtype), 0, meta=True).materialise()
    of_file = {name: each for name, each in made.state_dict().items() if "lora_" not in name}
    assert {each.dtype for each in of_file.values()} == {dtype}
    assert all(torch.equal(each, expected.state_dict()[name]) for name, each in of_file.items())
    assert set(made.state_dict()) == set(expected.state_dict())
    for name, each in expected.named_buffers():
        assert torch.equal(each, dict(made.named_buffers())[name])
    drawn = {name: each for name, each in made.state_dict().items() if "lora_" in name}
    assert {each.dtype for each in drawn.values()} == ({torch.float32} if adapters else set())
    assert all(bool(each.any()) == ("lora_A" in name) for name, each in drawn.items())


def test_a_run_has_the_same_losses_with_a_model_that_is_read_tensor_by_tensor(
    tmp_path: Path, tiny: Make, run: Run
) -> None:
    folder = models.causal(tmp_path / "model")
    overrides = (
        f"workload.model.pretrained={folder}",
        "workload.data.tokens=model",
        "workload.model.context=16",
        "steps=4",
        "optimizer.warmup=1",
        "strategy=fsdp",
    )
    run(tiny(*overrides), tmp_path / "whole")
    run(tiny(*overrides, "sharding.meta_init=true"), tmp_path / "late", should_stop=StopAfter(2))
    run(tiny(*overrides, "sharding.meta_init=true"), tmp_path / "late")
    agrees(rows_of(tmp_path / "late"), rows_of(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no model.safetensors, whose tensors are read one by one"),
        ({"other": torch.zeros(1)}, r"lack lm_head\.weight, model\.embed_tokens"),
    ],
)
def test_a_model_without_its_weights_in_files_is_refused_by_name(
    tmp_path: Path, content: dict[str, torch.Tensor] | None, message: str
) -> None:
    folder = models.causal(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    if content is not None:
        save_file(content, folder / "model.safetensors", metadata={"format": "pt"})
    settings = GptSettings(pretrained=str(folder), context=16)
    with pytest.raises(InputError, match=message) as caught:
        build(lambda: pretrained.build(settings), 0, meta=True)
    assert caught.value.problems[0].fix == "sharding.meta_init=false"


@pytest.mark.deep
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_no_rank_holds_a_whole_pretrained_model(tmp_path: Path, tiny: Make) -> None:
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=512, intermediate_size=1024, num_hidden_layers=12, num_attention_heads=4
    )
    whole = transformers.LlamaForCausalLM(config)
    size = sum(each.numel() * 4 for each in whole.parameters())
    whole.save_pretrained(tmp_path / "model")
    del whole
    settings = GptSettings(pretrained=str(tmp_path / "model"), context=16)

    def check(rank: int) -> dict[str, float]:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 18)
        grown = {}
        late = ("strategy=fsdp", "sharding.meta_init=true")
        for name, overrides in {"first": late, "late": late, "at once": ("strategy=ddp",)}.items():
            context = RunContext(tmp_path, rank, 4, rank, 4)
            work = partial(make_strategy, tiny(*overrides), lambda: pretrained.build(settings), context)
            grown[name] = peak_growth(work) / size  # the first one imports
        return grown

    for grown in on_ranks(check, 4, tmp_path):
        assert grown["at once"] > 0.9
        assert grown["late"] < 0.6
