"""Changes of a recipe between two starts of a run, what the second start then does, and how it is observed: for
test_recipe_changes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from trainfleet.training.data.order import SampleOrder
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer import loop
from trainfleet.training.trainer.strategies import FsdpStrategy
from trainfleet.training.trainer.weight_average import decay_of
from trainfleet.training.workloads import chunked_loss
from trainfleet.training.workloads.lm.gpt import Block
from trainfleet.training.workloads.lm.workload import LanguageModel

STOPPED, STEPS, BATCH = 5, 12, 16
IN_EPOCHS = 13
"""Steps of 0.2 epochs."""
Rows = list[dict[str, Any]]


@dataclass
class Start:
    """What one start of a run did.

    Attributes:
        run: the run in the loop.
        recipe: of this start.
        losses_known: how many the guards had, after the resume.
        moments: of the optimizer, before its first step.
        samples: of each step.
        norms: of the gradient that the optimizer got, of each step.
        rounded: whether that gradient was one in bf16, of each step.
        block_passes: forward passes of blocks, of each step.
        computed_in: the types of autocast; None: without it.
        chunks: tokens of each product with the head.
        averaged: a tensor of the average of the weights, before the last step.
        saved: the steps of its checkpoints.
        rows: of metrics.jsonl.
    """

    run: Any
    recipe: Recipe
    losses_known: int
    moments: list[torch.Tensor] = field(default_factory=list)
    samples: list[list[int]] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    rounded: list[bool] = field(default_factory=list)
    block_passes: list[int] = field(default_factory=list)
    computed_in: set[torch.dtype | None] = field(default_factory=set)
    chunks: list[int] = field(default_factory=list)
    averaged: torch.Tensor | None = None
    saved: list[int] = field(default_factory=list)
    rows: Rows = field(default_factory=list)

    def current_moments(self) -> list[torch.Tensor]:
        """Copies of the moments of all parameters."""
        state = self.run.optimizer.state
        parameters = [each for group in self.run.optimizer.param_groups for each in group["params"]]
        names = ("exp_avg", "exp_avg_sq", "momentum_buffer")
        return [
            whole(state[each][name]) for each in parameters for name in names if name in state.get(each, {})
        ]

    def before_step(self, *_: Any) -> None:
        """The optimizer is about to make a step."""
        self.moments = self.moments or self.current_moments()
        found = [whole(each.grad) for each in self.run.strategy.module.parameters()]
        self.norms.append(float(get_total_norm(found)))
        self.rounded.append(all(torch.equal(each, each.bfloat16().float()) for each in found))
        self.averaged = next((whole(each) for each in self.run.state.average.tensors.values()), None)


def whole(tensor: torch.Tensor | None) -> torch.Tensor:
    """A copy of a tensor, or of all shards of one."""
    assert tensor is not None
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def watch(monkeypatch: pytest.MonkeyPatch) -> list[Start]:
    """What the starts after this call do, in their order."""
    starts: list[Start] = []
    resume, compute = loop._Run._resume, loop.Stepper.compute_gradients
    forward_loss, block, chunk = LanguageModel.forward_loss, Block.forward, chunked_loss.chunk_loss

    def resumed(self: Any) -> int:
        step = resume(self)
        start = Start(self, self.recipe, len(self.guards.state()["past"]))
        self.context.on_checkpoint = lambda step, _: start.saved.append(step)
        self.optimizer.register_step_pre_hook(start.before_step)
        starts.append(start)
        return step

    def computed(self: Any, samples: list[int], *arguments: Any) -> Any:
        starts[-1].samples.append(samples)
        starts[-1].block_passes.append(0)
        return compute(self, samples, *arguments)

    def with_type(self: Any, *arguments: Any) -> Any:
        on = torch.is_autocast_enabled("cpu")
        starts[-1].computed_in.add(torch.get_autocast_dtype("cpu") if on else None)
        return forward_loss(self, *arguments)

    def counted(self: Any, *arguments: Any) -> Any:
        if (
            torch.is_grad_enabled() and starts[-1].samples
        ):  # neither in a validation nor before the first step
            starts[-1].block_passes[-1] += 1
        return block(self, *arguments)

    def chunked(hidden: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        starts[-1].chunks.append(len(hidden))
        return chunk(hidden, *arguments, **named)

    monkeypatch.setattr(loop._Run, "_resume", resumed)
    monkeypatch.setattr(loop.Stepper, "compute_gradients", computed)
    monkeypatch.setattr(LanguageModel, "forward_loss", with_type)
    monkeypatch.setattr(Block, "forward", counted)
    monkeypatch.setattr(chunked_loss, "chunk_loss", chunked)
    return starts


Check = Callable[[Start, Start], bool]
"""Whether the first start and the resumed one did what the documentation says."""


@dataclass(frozen=True)
class Changed:
    """A change at step 5 of 12, and what the resumed run then has.

    Attributes:
        overrides: the change.
        keys: of the documentation; allowed with `--allow-change` unless they are free.
        before: further overrides of both recipes.
        steps, samples: of the whole run.
        rows: of the rows after the change, fields and their value.
        groups: of the optimizer, settings and their value, in the groups that have them.
        effect: more that must hold.
        same_losses: but for rounding, losses are those of an unchanged run.
    """

    overrides: tuple[str, ...]
    keys: tuple[str, ...]
    before: tuple[str, ...] = ()
    steps: int = STEPS
    samples: int = STEPS * BATCH
    rows: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Any] = field(default_factory=dict)
    effect: Check | None = None
    same_losses: bool = False


def rates(start: Start) -> list[float]:
    return [row["lr"] for row in start.rows if row["kind"] == "train"]


def updated_average(start: Start) -> bool:
    """The average after the last step, by the documented decay."""
    state, before = start.run.state, start.averaged
    name, after = next(iter(state.average.tensors.items()))
    weight = dict(start.run.strategy.module.named_parameters())[name]
    share = 1 - decay_of(start.recipe.ema.decay or 0.0, state.step)
    return before is not None and torch.allclose(after, torch.lerp(before, weight.detach(), share))


def dropout(start: Start) -> float:
    (rate,) = {each.p for each in start.run.strategy.module.modules() if isinstance(each, nn.Dropout)}
    return rate


def float8_layers(start: Start) -> int:
    return [type(each).__name__ for each in start.run.strategy.module.modules()].count("Float8Linear")


def sharded(start: Start) -> bool:
    trained = [each for group in start.run.optimizer.param_groups for each in group["params"]]
    return isinstance(start.run.strategy, FsdpStrategy) and all(isinstance(each, DTensor) for each in trained)


def validated(start: Start) -> list[int]:
    return [row["step"] for row in start.rows if row["kind"] == "validation"]


def ordered(start: Start, seed: int) -> list[int]:
    """The samples of the first step after the change, by the order of a seed."""
    return SampleOrder(seed, start.run.order.size).indices(STOPPED * BATCH, 2 * BATCH)


CHANGES = {
    "lr": Changed(
        ("optimizer.lr=1e-4",), ("optimizer.lr",), ("optimizer.schedule=constant",), rows={"lr": 1e-4}
    ),
    "schedule": Changed(
        ("optimizer.schedule=constant",), ("optimizer.schedule",), ("optimizer.lr=1e-3",), rows={"lr": 1e-3}
    ),
    "warmup": Changed(
        ("optimizer.warmup=10",), ("optimizer.warmup",), effect=lambda _, now: rates(now)[0] == 5e-3 * 6 / 10
    ),
    "min_ratio": Changed(
        ("optimizer.min_ratio=0.5",), ("optimizer.min_ratio",), effect=lambda _, now: rates(now)[-1] == 2.5e-3
    ),
    "betas": Changed(("optimizer.betas=[0.8, 0.9]",), ("optimizer.betas",), groups={"betas": (0.8, 0.9)}),
    "eps": Changed(("optimizer.eps=1e-6",), ("optimizer.eps",), groups={"eps": 1e-6}),
    "weight_decay": Changed(
        ("optimizer.weight_decay=0.5",), ("optimizer.weight_decay",), groups={"weight_decay": 0.5}
    ),
    "momentum": Changed(
        ("optimizer.momentum=0.8",),
        ("optimizer.momentum",),
        ("optimizer.name=muon",),
        groups={"momentum": 0.8},
    ),
    "grad_clip": Changed(
        ("optimizer.grad_clip=0.01",),
        ("optimizer.grad_clip",),
        effect=lambda first, now: min(first.norms) > 0.1 and max(now.norms) == pytest.approx(0.01, rel=1e-3),
    ),
    "steps": Changed(("steps=14",), ("steps",), steps=14, samples=14 * BATCH),
    "epochs": Changed(
        ("epochs=0.2",),
        ("epochs",),
        ("steps=null", "epochs=0.15"),
        steps=IN_EPOCHS,
        samples=IN_EPOCHS * BATCH,
    ),
    "micro_batch": Changed(("batch.micro_batch=2",), ("batch.micro_batch",), same_losses=True),
    "micro_batch, after a probe": Changed(
        ("batch.micro_batch=2",), ("batch.micro_batch",), ("controllers.micro_batch=probe",), same_losses=True
    ),
    "global_batch": Changed(
        ("batch.global_batch=32",),
        ("batch.global_batch",),
        ("optimizer.schedule=constant", "optimizer.lr=1e-3"),
        samples=STOPPED * BATCH + (STEPS - STOPPED) * 32,
        rows={"global_batch": 32, "lr": 1e-3},
    ),
    "precision": Changed(
        ("precision=bf16",),
        ("precision",),
        effect=lambda first, now: (first.computed_in, now.computed_in) == ({None}, {torch.bfloat16}),
    ),
    "reduce_precision": Changed(
        ("reduce_precision=bf16",),
        ("reduce_precision",),
        ("strategy=fsdp", "optimizer.grad_clip=1000"),  # fsdp rounds with one worker too
        effect=lambda first, now: not any(first.rounded) and all(now.rounded),
    ),
    "float8": Changed(
        ("float8.scaling=rowwise", "float8.emulate=true"),
        ("float8",),
        ("precision=bf16",),
        effect=lambda first, now: not float8_layers(first) and float8_layers(now) > 0,
    ),
    "ema": Changed(
        ("ema.decay=0.9",), ("ema",), effect=lambda _, now: updated_average(now), same_losses=True
    ),
    "ema, another decay": Changed(
        ("ema.decay=0.9",),
        ("ema",),
        ("ema.decay=0.5",),
        effect=lambda _, now: updated_average(now),
        same_losses=True,
    ),
    "ema, dropped": Changed(
        ("ema.decay=null",),
        ("ema",),
        ("ema.decay=0.5",),
        effect=lambda first, now: first.averaged is not None and now.averaged is None,
        same_losses=True,
    ),
    "strategy": Changed(
        ("strategy=fsdp",),
        ("strategy",),
        effect=lambda first, now: not sharded(first) and sharded(now),
        same_losses=True,
    ),
    "activation_checkpointing": Changed(
        ("activation_checkpointing=full",),
        ("activation_checkpointing",),
        effect=lambda first, now: (set(first.block_passes), set(now.block_passes)) == ({4}, {8}),
        same_losses=True,
    ),
    "loss_chunk": Changed(
        ("workload.model.loss_chunk=24",),
        ("workload.model.loss_chunk",),
        effect=lambda first, now: (max(first.chunks), max(now.chunks)) == (4 * 32, 24),
        same_losses=True,
    ),
    "seed": Changed(
        ("seed=7",), ("seed",), effect=lambda _, now: now.samples[0] != ordered(now, seed=1)[:BATCH]
    ),
    "controllers.rate": Changed(
        ("controllers.rate.kind=restarts", "controllers.rate.cycle=4"),
        ("controllers.rate",),
        ("controllers.rate.kind=plateau", "optimizer.schedule=constant"),
        effect=lambda _, now: rates(now)[0] == 5e-3 and 0 < min(rates(now)) < 2.5e-3,
    ),
    "controllers.batch": Changed(
        ("controllers.batch.kind=noise",),
        ("controllers.batch",),
        rows={"global_batch": BATCH},
        effect=lambda first, now: (
            not first.run.controllers.measures_noise(5) and now.run.controllers.measures_noise(5)
        ),
    ),
    "guards": Changed(
        ("guards.spike=skip", "guards.window=8"),
        ("guards",),
        effect=lambda _, now: (now.losses_known, now.run.guards.config.window) == (STOPPED, 8),
        same_losses=True,
    ),
    "checkpoint.every": Changed(
        ("checkpoint.every=3",),
        ("checkpoint.every",),
        effect=lambda first, now: (first.saved, now.saved) == ([4, 5], [6, 9, 12]),
        same_losses=True,
    ),
    "checkpoint.every, auto": Changed(
        ("checkpoint.every=auto", "checkpoint.mtbf_hours=24"),
        ("checkpoint.every", "checkpoint.mtbf_hours"),
        rows={"checkpoint_every": 20},
        effect=lambda _, now: now.saved == [12],
        same_losses=True,
    ),
    "validation": Changed(
        ("validation.every=3", "validation.samples=4"),
        ("validation",),
        effect=lambda _, now: (
            validated(now) == [6, 9, 12] and len(now.run.evaluator.samples["validation"]) == 4
        ),
        same_losses=True,
    ),
    "data": Changed(
        ("workload.data.glob='part0/*.txt'",),
        ("workload.data",),
        effect=lambda first, now: now.run.order.size < 0.5 * first.run.order.size,
    ),
    "model": Changed(
        ("workload.model.dropout=0.2",),
        ("workload.model",),
        effect=lambda first, now: (dropout(first), dropout(now)) == (0.0, 0.2),
    ),
}
