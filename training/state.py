"""A run's whole state, out to a checkpoint and back: model, optimizer, random generators of every rank, position, metrics.

Used by the step loop. Easy to get wrong: what belongs to one rank (generators, an interval's sums) is gathered from all;
with another number of ranks the sums are added up and the generators start anew from seed, rank and step.
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
from training.checkpoint import rng_state, set_rng_state
from training.context import RunContext
from training.distributed import gather
from training.journal import versions
from training.metrics import MetricsManager
from training.recipe import Recipe, differences
from training.strategies import Strategy


@dataclass
class RunState:
    """Everything that changes while a run goes on.

    Attributes:
        step: optimizer steps done.
        position: samples trained on since the run's start; the next one's place in the order.
        figures: the last validation's metrics.
    """

    recipe: Recipe
    strategy: Strategy
    optimizer: Optimizer
    interval: MetricsManager
    fingerprint: str
    step: int = 0
    position: int = 0
    figures: dict[str, float] | None = None

    def capture(self, context: RunContext) -> dict[str, Any]:
        """The state as plain values and tensors, whole on rank 0; every rank must call this."""
        tensors = self.strategy.tensors(self.optimizer, whole=True)
        ranks = gather({"rng": rng_state(), "interval": self.interval.state()}, context.rank, context.world_size)
        if context.rank:
            return {}
        return {
            "step": self.step,
            "position": self.position,
            **tensors,
            "ranks": ranks,
            "figures": self.figures,
            "recipe": self.recipe.model_dump(mode="json"),
            "fingerprint": self.fingerprint,
            "versions": versions(),
        }

    def restore(self, state: Mapping[str, Any], context: RunContext) -> None:
        """Go on from a captured state.

        Raises:
            InputError: the recipe differs in a key that is not allowed to, or the data is not what it was.
        """
        self._check(state, context)
        self.step, self.position, self.figures = state["step"], state["position"], state["figures"]
        self.strategy.load_tensors(self.optimizer, {name: state[name] for name in ("model", "optimizer")}, whole=True)
        ranks = state["ranks"]
        if len(ranks) == context.world_size:
            mine = ranks[context.rank]
            self.interval.load_state(mine["interval"])
            set_rng_state(mine["rng"])
        else:
            if context.rank == 0:
                self.interval.load_state(*(each["interval"] for each in ranks))
            seed_rank(self.recipe.seed, context.rank, self.step)

    def _check(self, state: Mapping[str, Any], context: RunContext) -> None:
        changed = differences(state["recipe"], self.recipe.model_dump(mode="json"), context.allow_changes)
        problems = [Problem(key, f"was {old}, is now {new}", f"put it back, or --allow-change {key}") for key, old, new in changed]
        if problems:
            raise InputError(f"the recipe is not the one that {context.run_dir} was started with", problems)
        if state["fingerprint"] != self.fingerprint and "workload.data" not in context.allow_changes:
            what = "the text or its split changed since the checkpoint, so samples would be repeated or left out"
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
