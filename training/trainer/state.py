"""A run's whole state, out to a checkpoint and back: model, optimizer, random generators of every rank,
position, metrics.

Used by the step loop. Easy to get wrong: what belongs to one rank (generators, an interval's sums) is kept
for each; with
another number of ranks the sums are added up and the generators start anew from seed, rank and step.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from trainfleet.errors import InputError, Problem
from trainfleet.training.checkpoint import Checkpoints
from trainfleet.training.recipe.changes import differences
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.writer import versions
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.controllers import Steering
from trainfleet.training.trainer.guards import Guards
from trainfleet.training.trainer.metrics import MetricsManager
from trainfleet.training.trainer.strategies import Strategy
from trainfleet.training.trainer.strategies.base import Tensors


@dataclass
class RunState:
    """Everything that changes while a run goes on.

    Attributes:
        step: optimizer steps done.
        position: samples trained on since the run's start; the next one's place in the order.
        figures: the last validation's metrics.
        steering, guards: what changes learning rate and batch size, and what judges a step.
    """

    recipe: Recipe
    strategy: Strategy
    optimizer: Optimizer
    interval: MetricsManager
    fingerprint: str
    steering: Steering
    guards: Guards
    step: int = 0
    position: int = 0
    figures: dict[str, float] | None = None

    def tensors(self) -> Tensors:
        """What is spread over ranks: the model and the optimizer. Every rank must call this."""
        return self.strategy.tensors(self.optimizer)

    def own(self) -> dict[str, Any]:
        """This rank's plain values."""
        return {"rng": rng_state(), "interval": self.interval.state()}

    def shared(self) -> dict[str, Any]:
        """Plain values that are the same on all ranks."""
        return {
            "step": self.step,
            "position": self.position,
            "figures": dict(self.figures) if self.figures is not None else None,
            "steering": self.steering.state(),
            "guards": self.guards.state(),
            "recipe": self.recipe.model_dump(mode="json"),
            "fingerprint": self.fingerprint,
            "versions": versions(),
        }

    def restore(self, checkpoints: Checkpoints, name: str, context: RunContext) -> int:
        """Go on from a checkpoint; returns how many ranks wrote it. Every rank must call this.

        Raises:
            InputError: the recipe differs in a key that is not allowed to, the data is not what it was, or it
            is another model's.
            CheckpointError: it cannot be read.
        """
        plain = checkpoints.read(name)
        shared, ranks = plain["shared"], plain["ranks"]
        self._check(shared, context)
        into = self.tensors()
        checkpoints.load(name, into, self.strategy.module)
        self.strategy.load_tensors(self.optimizer, into)
        self.step, self.position, self.figures = shared["step"], shared["position"], shared["figures"]
        self.steering.load_state(shared["steering"])
        self.guards.load_state(shared["guards"])
        if len(ranks) == context.world_size:
            mine = ranks[context.rank]
            self.interval.load_state(mine["interval"])
            set_rng_state(mine["rng"])
        else:
            if context.rank == 0:
                self.interval.load_state(*(each["interval"] for each in ranks))
            seed_rank(self.recipe.seed, context.rank, self.step)
        return len(ranks)

    def _check(self, state: Mapping[str, Any], context: RunContext) -> None:
        changed = differences(state["recipe"], self.recipe.model_dump(mode="json"), context.allow_changes)
        problems = [
            Problem(key, f"was {old}, is now {new}", f"put it back, or --allow-change {key}")
            for key, old, new in changed
        ]
        if problems:
            raise InputError(f"the recipe is not the one that {context.run_dir} was started with", problems)
        if state["fingerprint"] != self.fingerprint and "workload.data" not in context.allow_changes:
            what = (
                "the text or its split changed since the checkpoint, so samples would be repeated or left out"
            )
            raise InputError(
                f"the data is not what {context.run_dir} was started with",
                [Problem("workload.data", what, "start a new run, or --allow-change workload.data")],
            )


def seed_rank(seed: int, rank: int, step: int) -> None:
    """Start this rank's generators anew: a function of seed, rank and step."""
    digest = hashlib.sha256(f"{seed}:{rank}:{step}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:7]))
    random.seed(int.from_bytes(digest[8:16]))
    np.random.seed(int.from_bytes(digest[16:20]))


def rng_state() -> dict[str, Any]:
    """This process's random generators: torch (CPU and its GPU), Python and NumPy, as plain values."""
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
    """Put back what `rng_state` took."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    random.setstate(state["python"])
    keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))
