"""Blocks and the loss are compiled with every strategy and recomputation, a run reports it, and warm-up changes nothing.

The backend stops before code generation (`aot_eager`), because only graphs are counted here. The deep test in
test_strategies.py generates code.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.training_runs import on_ranks
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.reader import read_rows
from trainfleet.training.runtime.process_group import single_process_group
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.step import Stepper
from trainfleet.training.trainer.strategies import make_strategy, wrap
from trainfleet.training.workloads import make_workload

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
MODES = ("none", "selective", "full")
LAYERS = 2


def counting_backend(calls: list[int]) -> Callable[..., Any]:
    """A backend that adds to `calls` whenever one of its graphs runs."""
    from torch._dynamo.backends.debugging import aot_eager

    def compile_graph(graph: Any, inputs: Any) -> Any:
        compiled = aot_eager(graph, inputs)

        def run(*arguments: Any) -> Any:
            calls.append(1)
            return compiled(*arguments)

        return run

    return compile_graph


def gradients(recipe: Recipe, context: RunContext) -> tuple[float, float]:
    """Loss and gradient norm of the second of two steps, after the warm-up."""
    workload = make_workload(recipe, context.cache)
    strategy = make_strategy(recipe, workload.build_model, context)
    stepper = Stepper(recipe, context, workload, strategy)
    strategy.warm_up(stepper.warmup_pass)
    for first in (0, 16):
        result = stepper.compute_gradients(list(range(first, first + 16)))
        strategy.module.zero_grad(set_to_none=True)
    loss, grad_norm = result.values.tolist()
    return loss, grad_norm


def compiled_and_not(
    make: Callable[..., Recipe], strategy: str, mode: str, context: RunContext
) -> dict[str, Any]:
    torch._dynamo.reset()
    given = (
        f"strategy={strategy}",
        f"activation_checkpointing={mode}",
        f"workload.model.layers={LAYERS}",
        "batch.micro_batch=4",
    )
    calls: list[int] = []
    wrap.BACKEND = counting_backend(calls)  # type: ignore[assignment]
    plain = gradients(make(*given), context)
    graphs = wrap.CompiledGraphs()
    compiled = gradients(make(*given, "compile=true"), context)
    passes = 16 // 4 // context.world_size * 2 + (2 if strategy == "ddp" and context.world_size > 1 else 0)
    return {"plain": plain, "compiled": compiled, "event": graphs.describe(), "calls": len(calls) / passes}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_every_block_runs_compiled(
    tmp_path: Path, tiny: Make, cache: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, mode: str
) -> None:
    monkeypatch.setattr(wrap, "BACKEND", wrap.BACKEND)
    with single_process_group() if strategy != "ddp" else nullcontext():
        found = compiled_and_not(tiny, strategy, mode, RunContext(tmp_path, cache=cache))
    assert found["compiled"] == pytest.approx(found["plain"], rel=1e-4)
    assert found["event"] == ("compiled", "2 graphs, no graph break")  # equal blocks share one
    assert found["calls"] == LAYERS + 1  # each block and the loss


@pytest.mark.deep
def test_every_block_runs_compiled_on_two_ranks(tmp_path: Path, tiny: Make, cache: Path) -> None:
    def check(rank: int) -> dict[str, Any]:
        context = RunContext(tmp_path, rank, 2, rank, 2, cache=cache)
        return {
            f"{strategy}, {mode}": compiled_and_not(tiny, strategy, mode, context)
            for strategy, mode in (("ddp", "none"), ("ddp", "selective"), ("fsdp", "full"))
        }

    # The warm-up of ddp compiles the loss without the accuracy, the steps, which are logged, with it.
    graphs = {"ddp, none": 3, "ddp, selective": 3, "fsdp, full": 2}
    for found in on_ranks(check, 2, tmp_path):
        for name, each in found.items():
            assert each["compiled"] == pytest.approx(each["plain"], rel=1e-4), name
            assert each["event"][0] == "compiled", name
            assert each["event"][1] == f"{graphs[name]} graphs, no graph break", name
            assert each["calls"] == LAYERS + 1, name


def compile_events(run_dir: Path) -> list[tuple[str, str]]:
    rows = [row for row in read_rows(run_dir).rows if row["kind"] == "event"]
    return [(row["what"], row["text"]) for row in rows if "compiled" in row["what"]]


def test_a_run_reports_what_was_compiled_and_warns_if_nothing_was(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrap, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    run(tiny("steps=2", "optimizer.warmup=0"), tmp_path / "off")
    run(tiny("steps=2", "optimizer.warmup=0", "compile=true"), tmp_path / "on")
    with torch._dynamo.config.patch(disable=True):
        run(tiny("steps=2", "optimizer.warmup=0", "compile=true"), tmp_path / "disabled")
    assert compile_events(tmp_path / "off") == []
    assert compile_events(tmp_path / "on") == [("compiled", "2 graphs, no graph break")]
    ((what, text),) = compile_events(tmp_path / "disabled")
    assert what == "not_compiled"
    assert "has compiled nothing" in text


class Normalised(nn.Module):
    """BatchNorm of a pooled feature: it cannot train on a single sample."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 256)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor, _: bool) -> tuple[torch.Tensor, None]:
        x = self.embedding(tokens)
        logits = self.head(x + self.norm(x.mean(dim=1))[:, None])
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"), None


def test_warm_up_changes_no_buffer_and_uses_a_whole_micro_batch(
    tmp_path: Path, tiny: Make, cache: Path
) -> None:
    recipe, context = tiny("workload.data.tokens=bytes"), RunContext(tmp_path, cache=cache)
    workload = make_workload(recipe, cache)
    strategy = make_strategy(recipe, Normalised, context)
    stepper = Stepper(recipe, context, workload, strategy)
    sizes: list[int] = []
    real = workload.batch
    workload.batch = lambda split, indices: sizes.append(len(indices)) or real(split, indices)  # type: ignore[method-assign,func-returns-value]
    before = {name: value.clone() for name, value in strategy.module.state_dict().items()}
    stepper.warmup_pass(strategy.module)
    assert stepper.time_micro_batch(4) is not None
    assert sizes[0] == recipe.batch.micro_batch > 1
    for name, value in strategy.module.state_dict().items():
        assert torch.equal(value, before[name]), name
