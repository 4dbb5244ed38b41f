"""Run folders in the released format, written by the writer of the trainer itself."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.limits import Meter
from trainfleet.training.runs.writer import RunWriter

LAUNCHERS = ("torchrun", "local", "kuberay", "sky", "ray-up")
OWNERS = ("ada", "grace", "edsger", "barbara")


def recipe() -> Recipe:
    """A recipe that needs no data and no tracker."""
    return load_recipe("lm-tiny", ["log.tensorboard=false"])


def write_run(
    folder: Path,
    points: int,
    index: int = 0,
    *,
    status: str = "finished",
    shared: Recipe | None = None,
    **facts: Any,
) -> Path:
    """Write a run of `points` rows of training, a validation at every fiftieth part of them, and a few faults."""
    chosen = (shared or recipe()).model_copy(update={"name": facts.pop("name", folder.name)})
    noise, every = random.Random(index), max(1, points // 50)
    meter = Meter(chosen.limits, 4.0 + index % 3, 0.0)
    with RunWriter(
        folder, chosen, 0, {"steps": points, "workload": "lm", "world_size": 8}, meter=meter
    ) as writer:
        for step in range(1, points + 1):
            writer.write_row(train_row(step, points, noise))
            if step % every == 0:
                loss = 1.6 + 2.5 * math.exp(-4 * step / points)
                writer.write_row({"kind": "validation", "step": step, "validation/loss": loss})
            if step == points // 3:
                decision = {
                    "what": "learning rate",
                    "old": 3e-4,
                    "new": 1.5e-4,
                    "why": "no progress for 3 validations",
                }
                writer.write_row({"kind": "decision", "step": step, **decision})
            if step == points // 2:
                writer.write_row(
                    {"kind": "event", "step": step, "what": "skip", "text": "the loss was not finite"}
                )
        *before, start = writer.record["starts"]
        held = {
            "held_seconds": 3600.0 * (1 + index % 5),
            "trained_seconds": 3400.0,
            "usd_per_hour": 4.0 + index % 3,
        }
        launch = {
            "at": f"2026-11-{1 + index % 20:02}T08:{index % 60:02}:00+00:00",
            "on": LAUNCHERS[index % len(LAUNCHERS)],
            "owner": OWNERS[index % len(OWNERS)],
            "recipe": "lm-tiny",
            "workers": 8,
            "seconds": 3600.0 * (1 + index % 5),
            "first_step_seconds": 40.0,
            "status": status,
        }
        writer.update(
            starts=[*before, {**start, **held}], launches=[launch], status=status, step=points, **facts
        )
    return folder


def train_row(step: int, steps: int, noise: random.Random) -> dict[str, Any]:
    """A row with all fields of a language model's training."""
    loss = 1.5 + 2.6 * math.exp(-5 * step / steps) + noise.gauss(0, 0.05)
    return {
        "kind": "train",
        "step": step,
        "steps": steps,
        "epoch": 3 * step / steps,
        "loss": loss,
        "nats_per_byte": loss,
        "lr": 3e-4 * min(1.0, step / (0.05 * steps)) * (0.5 + 0.5 * math.cos(math.pi * step / steps)),
        "grad_norm": abs(noise.gauss(1.0, 0.2)),
        "global_batch": 256,
        "communication": 0.08,
        "samples_per_second": 410 + noise.gauss(0, 9),
        "tokens_per_second": 410 * 1024 + noise.gauss(0, 9000),
        "mfu": 0.41 + noise.gauss(0, 0.01),
        "data_wait": 0.02,
        "step_seconds": 0.33,
        "checkpoint_seconds": 1.5 if step % 500 == 0 else 0.0,
        "validation_seconds": 4.0 if step % 200 == 0 else 0.0,
        "eta_seconds": (steps - step) * 0.33,
        "usd": 0.0011 * step,
    }
