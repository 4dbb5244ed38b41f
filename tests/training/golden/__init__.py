"""The golden losses of recipes, step by step. Change them only on purpose.

    python -m tests.training.golden --refresh [NAME ...]

writes NAME.txt again, on one rank with ddp. Nothing else writes these files. test_golden.py compares them
with each strategy.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe

FOLDER = Path(__file__).parent
TOLERANCE = 2e-4
"""Relative, of a loss. Other processors add and multiply in another order, and the difference accumulates
over steps.
"""
QUIET = (
    "log.every=1",
    "log.tensorboard=false",
    "validation.every=1000",
    "checkpoint.every=1000",
    "scaling.workers=1",
)
TEXT = (
    "workload.data.glob='**/*.txt'",
    "workload.data.validation_share=0.15",
    "workload.data.test_share=0.15",
)


@dataclass(frozen=True)
class Golden:
    """A recipe and overrides that make it short enough for a test; `deep` if it still takes long."""

    recipe: str
    overrides: tuple[str, ...]
    text: bool = True
    deep: bool = False

    def load(self, text: Path, strategy: str = "ddp") -> Recipe:
        data = (f"workload.data.source={text}", *TEXT) if self.text else ()
        return load_recipe(self.recipe, [*data, *QUIET, *self.overrides, f"strategy={strategy}"])


GOLDEN = {
    "lm-tiny": Golden("lm-tiny", ("steps=20",)),
    "lm-tiny-late": Golden("lm-tiny", ("steps=10", "sharding.meta_init=true", "workload.model.layers=2")),
    "lm-small": Golden("lm-small", ("steps=10", "optimizer.warmup=4"), deep=True),
    "vision-small": Golden(
        "vision-small", ("steps=10", "epochs=null", "optimizer.warmup=2"), text=False, deep=True
    ),
}


def write_text(folder: Path) -> Path:
    """Write forty files of synthetic sentences, the same on every machine."""
    # The text must be the same everywhere. The source of Python differs by version.
    rng = random.Random(7)
    words = ["gradient", "tensor", "rank", "a", "the", "of", "sums", "step", "café", "loss"]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(40):
        lines = [" ".join(rng.choices(words, k=8)) + "." for _ in range(30)]
        (folder / f"{number:02}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def read(name: str) -> list[float]:
    """The golden losses, one per step."""
    lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [float(line.split()[1]) for line in lines if not line.startswith("#")]


def write(name: str, losses: list[float]) -> None:
    """Write the losses of a recipe, with its overrides."""
    import torch

    golden = GOLDEN[name]
    overrides = " ".join(golden.overrides)
    head = [
        f"# {golden.recipe} {overrides}",
        f"# step and loss, one rank, ddp, torch {torch.__version__}; `python -m tests.training.golden --refresh`",
    ]
    rows = [f"{step} {loss:.9f}" for step, loss in enumerate(losses, start=1)]
    (FOLDER / f"{name}.txt").write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")
