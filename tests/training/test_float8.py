"""Linear layers in float8: which are replaced, what refuses them, and runs that resume, compile and shard."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.training.test_loop import results
from tests.training.test_reduce_precision import fake_group
from tests.training.training_runs import StopAfter
from trainfleet.errors import InputError
from trainfleet.training.recipe.schema import Float8, Recipe
from trainfleet.training.runtime.process_group import single_process_group
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.step import Stepper
from trainfleet.training.trainer.strategies import make_strategy
from trainfleet.training.trainer.strategies.float8 import use_float8
from trainfleet.training.workloads import make_workload

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
EMULATED = ("precision=bf16", "float8.scaling=rowwise", "float8.emulate=true")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(32, 64)
        self.odd = nn.Linear(32, 20)
        self.frozen = nn.Linear(32, 32).requires_grad_(False)
        self.attention = nn.MultiheadAttention(32, 2)


def replaced(model: nn.Module) -> list[str]:
    return [name for name, each in model.named_modules() if type(each).__name__ == "Float8Linear"]


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_trained_layers_whose_sizes_fit_are_replaced_and_their_parameters_stay(scaling: str) -> None:
    block = Block()
    before = dict(block.named_parameters())
    assert use_float8(Float8(scaling=scaling, emulate=True), [block], "cpu") == 1
    assert replaced(block) == ["wide"]
    assert {name: id(each) for name, each in block.named_parameters()} == {
        name: id(each) for name, each in before.items()
    }
    given = torch.randn(48, 32, dtype=torch.bfloat16, requires_grad=True)
    exact = given @ block.wide.weight.to(torch.bfloat16).T + block.wide.bias.to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = block.wide(given)
    assert found.dtype == torch.bfloat16
    error = (found - exact).norm() / exact.norm()
    assert 1e-3 < error < 0.1, "float8_e4m3 has three bits of mantissa"
    found.float().sum().backward()
    assert block.wide.weight.grad is not None
    assert block.wide.weight.grad.dtype == torch.float32


def test_nothing_is_replaced_by_default_and_no_layer_that_fits_is_an_error() -> None:
    block = Block()
    assert use_float8(Float8(), [block], "cpu") == 0
    assert not replaced(block)
    for blocks in ([], [nn.Sequential(nn.Linear(8, 8))]):
        with pytest.raises(InputError, match="no linear layer of a block has trained weights with sizes"):
            use_float8(Float8(scaling="tensorwise", emulate=True), blocks, "cpu")


@pytest.mark.parametrize(
    ("scaling", "device", "capability", "why"),
    [
        ("tensorwise", "cpu", None, "a CPU has no matrix products in float8"),
        ("tensorwise", "cuda:0", (8, 0), "GPU has compute capability 8.0, `tensorwise` needs 8.9"),
        ("rowwise", "cuda:0", (8, 9), "GPU has compute capability 8.9, `rowwise` needs 9.0"),
        ("tensorwise", "cuda:0", (8, 9), None),
        ("rowwise", "cuda:0", (10, 0), None),
    ],
)
def test_a_device_without_such_products_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    scaling: str,
    device: str,
    capability: tuple[int, int] | None,
    why: str | None,
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "GPU")
    settings, block = Float8(scaling=scaling), Block()
    if why is None:
        assert use_float8(settings, [block], device) == 1
        return
    with pytest.raises(InputError, match=why) as caught:
        use_float8(settings, [block], device)
    assert "float8.emulate=true" in caught.value.problems[0].fix
    assert not replaced(block)


def test_torchao_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(InputError, match="torchao cannot be imported") as caught:
        use_float8(Float8(scaling="rowwise", emulate=True), [Block()], "cpu")
    assert caught.value.problems[0].fix == "pip install 'trainfleet[float8]'"


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (("float8.scaling=rowwise",), "float8.scaling"),
        (("float8.emulate=true",), "float8.emulate"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_rejected(
    tiny: Make, overrides: tuple[str, ...], where: str
) -> None:
    with pytest.raises(InputError) as caught:
        tiny(*overrides)
    (problem,) = caught.value.problems
    assert problem.where.endswith(where)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
@pytest.mark.parametrize("recomputed", ["none", "selective", "full"])
def test_every_strategy_computes_its_blocks_in_float8(
    tmp_path: Path, tiny: Make, cache: Path, strategy: str, recomputed: str
) -> None:
    recipe = tiny(
        *EMULATED,
        f"strategy={strategy}",
        f"activation_checkpointing={recomputed}",
        "batch.micro_batch=2",
        "sharding.replicas=2" if strategy == "hsdp" else "sharding.replicas=null",
        "scaling.workers=4",
    )
    workload, context = make_workload(recipe, cache), RunContext(tmp_path, 0, 4, 0, 4)
    with single_process_group() if strategy == "ddp" else fake_group():
        plain = make_strategy(recipe.model_copy(update={"float8": Float8()}), workload.build_model, context)
        made = make_strategy(recipe, workload.build_model, context)
        Stepper(recipe, context, workload, made).compute_gradients(list(range(16)))
    assert len(replaced(made.module)) > len(list(made.module.modules())) // 10
    names = [name for name, _ in made.module.named_parameters()]
    assert names == [name for name, _ in plain.module.named_parameters()]
    assert {each.grad.dtype for each in made.module.parameters() if each.grad is not None} == {torch.float32}


@pytest.mark.deep
def test_a_run_is_close_to_bf16_and_resumes_with_the_same_losses(
    tiny: Make, tmp_path: Path, run: Run
) -> None:
    losses = {}
    for name, overrides in {"bf16": EMULATED[:1], "float8": EMULATED, "cut": EMULATED}.items():
        if name == "cut":
            run(tiny("steps=8", *overrides), tmp_path / name, should_stop=StopAfter(3))
        run(tiny("steps=8", *overrides), tmp_path / name)
        losses[name] = [row["loss"] for row in results(tmp_path / name) if row["kind"] == "train"]
    assert len(losses["float8"]) == 8
    assert losses["cut"] == losses["float8"] != losses["bf16"]
    assert losses["float8"] == pytest.approx(losses["bf16"], rel=0.02)


@pytest.mark.deep
def test_compiled_blocks_have_the_same_losses(tiny: Make, tmp_path: Path, run: Run) -> None:
    """Compiled in one graph per block, and recomputed."""
    events = list[tuple[str, str]]()
    losses = {}
    for name, overrides in {"eager": (), "compiled": ("compile=true",)}.items():
        recipe = tiny("steps=5", *EMULATED, "activation_checkpointing=selective", *overrides)
        run(recipe, tmp_path / name, on_event=lambda *event: events.append(event))
        losses[name] = [row["loss"] for row in results(tmp_path / name) if row["kind"] == "train"]
    assert losses["compiled"] == pytest.approx(losses["eager"], rel=5e-3)
    (compiled,) = [text for kind, text in events if kind == "compiled"]
    assert "no graph break" in compiled, compiled
