"""The losses that a recipe is known to have, step by step: a change of numbers must be meant.

    python -m tests.training.golden --refresh [NAME ...]

writes NAME.txt anew, on one rank under ddp; nothing else does. Compared by test_golden.py, under every
strategy. Easy to get
wrong: the data must be the same everywhere, so a language model reads a text made here and not Python's own
source, which
differs from version to version.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe

FOLDER = Path(__file__).parent
TOLERANCE = 2e-4
"""Of a loss: other processors add and multiply in other orders, and a run carries that on from step to step."""
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
    """A recipe and what makes it short enough to be tried; `deep` where it still takes long."""

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
    """Forty files of made-up sentences, the same on every machine."""
    rng = random.Random(7)
    words = ["gradient", "tensor", "rank", "a", "the", "of", "sums", "step", "café", "loss"]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(40):
        lines = [" ".join(rng.choices(words, k=8)) + "." for _ in range(30)]
        (folder / f"{number:02}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def read(name: str) -> list[float]:
    """The known losses, a step after the other."""
    lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [float(line.split()[1]) for line in lines if not line.startswith("#")]


def write(name: str, losses: list[float]) -> None:
    """Keep losses for later comparison, with what they are of."""
    import torch

    golden = GOLDEN[name]
    said = " ".join(golden.overrides)
    head = [
        f"# {golden.recipe} {said}",
        f"# step and loss, one rank, ddp, torch {torch.__version__}; `python -m tests.training.golden --refresh`",
    ]
    rows = [f"{step} {loss:.9f}" for step, loss in enumerate(losses, start=1)]
    (FOLDER / f"{name}.txt").write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")
