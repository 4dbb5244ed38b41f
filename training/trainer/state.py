"""The state of a run in a checkpoint: model, optimizer, random generators of every rank, position, metrics.

Generators and an interval's sums are saved per rank. With another number of ranks the sums are added up, and
the generators are seeded from seed, rank and step.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch.optim import Optimizer

from trainfleet.errors import InputError, Problem
from trainfleet.training.checkpoint import Checkpoints
from trainfleet.training.checkpoint.plan import Staging
from trainfleet.training.checkpoint.rank_values import read_rank_values
from trainfleet.training.checkpoint.schedule import SaveSchedule
from trainfleet.training.recipe.changes import FIXED_KEYS, differences
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.writer import versions
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.controllers import Controllers
from trainfleet.training.trainer.frozen import KEY, require_source
from trainfleet.training.trainer.guards import Guards
from trainfleet.training.trainer.initial_weights import require_weights
from trainfleet.training.trainer.metrics import MetricsManager
from trainfleet.training.trainer.optimizer import recipe_settings
from trainfleet.training.trainer.strategies import Strategy
from trainfleet.training.trainer.strategies.base import StateDict
from trainfleet.training.trainer.weight_average import WeightAverage
from trainfleet.training.workloads import ASSETS

AVERAGE = "ema"
"""Where a checkpoint has the average of the weights, by parameter, next to `model` and `optimizer`."""


@dataclass
class RunState:
    """Everything that changes during a run.

    Attributes:
        step: optimizer steps done.
        position: samples trained on since the start of the run; the next sample's place in the order.
        metrics: of the last validation.
        frozen_source: identifies what the weights that are not trained were read from, and checkpoints leave
            them out; None: checkpoints have every weight.
        saves: after which steps to save.
        assets: the files that the workload needs to predict without its data.
        average: of the weights, if the recipe has one.
    """

    recipe: Recipe
    strategy: Strategy
    optimizer: Optimizer
    interval: MetricsManager
    fingerprint: str
    controllers: Controllers
    guards: Guards
    step: int = 0
    position: int = 0
    metrics: dict[str, float] | None = None
    frozen_source: str | None = None
    saves: SaveSchedule = field(default_factory=SaveSchedule)
    assets: Mapping[str, bytes] = field(default_factory=dict)
    average: WeightAverage = field(init=False)

    def __post_init__(self) -> None:
        self.average = WeightAverage(self.recipe.ema, self.strategy.module)

    def tensors(self) -> StateDict:
        """The model, the optimizer and the average of the weights, sharded over ranks. Collective."""
        average = {AVERAGE: dict(self.average.tensors)} if self.average.enabled else {}
        return self.strategy.state_dict(self.optimizer, trained_only=self.frozen_source is not None) | average

    def protect(self, staging: Staging) -> None:
        """Let each change of the weights and of their state wait for the copies of a snapshot."""
        self.optimizer.register_step_pre_hook(lambda *_: staging.copies.before_change())
        self.average.before_exchange = staging.copies.before_change
        staging.changed_in_forward = {f"model.{name}" for name, _ in self.strategy.module.named_buffers()}

    def rank_values(self) -> dict[str, Any]:
        """This rank's plain values."""
        return {"rng": rng_state(), "interval": self.interval.state()}

    def shared_values(self) -> dict[str, Any]:
        """Plain values that are the same on all ranks."""
        return {
            "step": self.step,
            "position": self.position,
            "figures": dict(self.metrics) if self.metrics is not None else None,
            "steering": self.controllers.state(),
            "guards": self.guards.state(),
            "recipe": self.recipe.model_dump(mode="json"),
            "fingerprint": self.fingerprint,
            "versions": versions(),
            KEY: self.frozen_source,
            "saves": self.saves.state(),
            ASSETS: dict(self.assets),
        }

    def row(self, steps: int, samples: int) -> dict[str, Any]:
        """Where the run is, for a row of metrics.jsonl: of `steps` steps, with `samples` in an epoch."""
        return {
            "step": self.step,
            "steps": steps,
            "epoch": self.position / samples,
            "lr": self.optimizer.param_groups[0]["lr"],
            "global_batch": self.controllers.global_batch,
            **self.saves.row(),
        }

    def restore(self, checkpoints: Checkpoints, name: str, context: RunContext) -> int:
        """Restore a checkpoint; returns how many ranks wrote it. Collective.

        Raises:
            InputError: the recipe differs in a key that is not free to change, the data or the pretrained
                model changed, or the checkpoint is of another model.
            CheckpointError: it cannot be read.
        """
        plain = read_rank_values(checkpoints, name)
        shared = plain.shared
        recipe = completed(shared["recipe"])
        self._check(recipe, shared["fingerprint"], context)
        require_source(shared.get(KEY), self.frozen_source, checkpoints.at(name))
        # A run whose checkpoints have every weight keeps them: they need not be those of the source.
        self.frozen_source = shared.get(KEY)
        into = self.tensors()
        has_average = recipe.get("ema", {}).get("decay") is not None
        if not has_average:
            into.pop(AVERAGE, None)
        checkpoints.load(name, into, self.strategy.module)
        require_weights(self.strategy, into["model"], checkpoints.at(name))
        settings = recipe_settings(self.optimizer)
        self.strategy.load_state_dict(self.optimizer, into)
        if not has_average:
            self.average.reset()
        for group, mine in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(mine)
        self.step, self.position, self.metrics = shared["step"], shared["position"], shared["figures"]
        self.controllers.load_state(shared["steering"], recipe, self.position)
        self.guards.load_state(shared["guards"])
        self.saves.load_state(shared.get("saves"), self.step)
        if plain.own is not None:
            self.interval.load_state(plain.own["interval"])
            set_rng_state(plain.own["rng"])
        else:
            if context.rank == 0:
                self.interval.load_state(*(each["interval"] for each in plain.ranks))
            seed_rank(self.recipe.seed, context.rank, self.step)
        return plain.written_by

    def _check(self, recipe: Mapping[str, Any], fingerprint: str, context: RunContext) -> None:
        changed = differences(recipe, self.recipe.model_dump(mode="json"), context.allow_changes)
        problems = [
            Problem(
                key,
                f"was {old}, is now {new}",
                "restore it, or start a new run"
                if key in FIXED_KEYS
                else f"restore it, or use --allow-change {key}",
            )
            for key, old, new in changed
        ]
        if problems:
            raise InputError(
                f"the recipe differs from the one that {context.run_dir} was started with", problems
            )
        if fingerprint != self.fingerprint and "workload.data" not in context.allow_changes:
            what = (
                "the data or its split changed since the checkpoint, so samples would be repeated or left out"
            )
            raise InputError(
                f"the data differs from the data that {context.run_dir} was started with",
                [Problem("workload.data", what, "start a new run, or use --allow-change workload.data")],
            )


def completed(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """A checkpoint's recipe with the defaults of keys that this version has added."""
    try:
        return Recipe.model_validate(recipe).model_dump(mode="json")
    except ValidationError:
        return recipe  # it has keys that this version has removed, which `differences` then names


def seed_rank(seed: int, rank: int, step: int) -> None:
    """Seed this rank's generators by seed, rank and step."""
    digest = hashlib.sha256(f"{seed}:{rank}:{step}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:7]))
    random.seed(int.from_bytes(digest[8:16]))
    np.random.seed(int.from_bytes(digest[16:20]))


def rng_state() -> dict[str, Any]:
    """The states of this process's random generators: torch (CPU and GPU), Python and NumPy, as
    plain values.
    """
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": (
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ),
    }


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restore the states that `rng_state` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    random.setstate(state["python"])
    keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))


@contextmanager
def torch_settings(recipe: Recipe, device: str = "cpu") -> Iterator[None]:
    """Set threads and determinism as in the recipe, and restore them afterwards.

    On GPUs, `deterministic: auto` is off: the backward pass of CTCLoss and of a two-dimensional NLLLoss would
    be rejected (torch.use_deterministic_algorithms), and convolutions are slower.
    """
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(recipe.scaling.threads)
    if recipe.deterministic is True or (recipe.deterministic == "auto" and device == "cpu"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a module with a property, which mypy does not know
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
