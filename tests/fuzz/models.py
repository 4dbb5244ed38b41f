"""Models for the requests of `serve`: one step of training each, of text and of pictures."""

from __future__ import annotations

import functools
from typing import Any

from tests.fuzz.folders import kept_folder

TEXT = "The node pool has no GPU. A checkpoint is written every four steps.\n" * 40
STEP = [
    "scaling.workers=1",
    "steps=1",
    "optimizer.warmup=0",
    "validation.every=1",
    "validation.samples=null",
    "checkpoint.every=1",
    "log.tensorboard=false",
]


@functools.cache
def predictors() -> tuple[Any, ...]:
    """A predictor of each."""
    import torch

    from trainfleet.training.inference.predictor import open_predictor
    from trainfleet.training.recipe.load import load_recipe
    from trainfleet.training.trainer.context import RunContext
    from trainfleet.training.trainer.loop import train

    folder = kept_folder()
    texts = folder / "texts"
    texts.mkdir()
    for number in range(12):
        (texts / f"{number}.txt").write_text(f"{number} {TEXT}", encoding="utf-8")
    own = [
        f"workload.data.source={texts}",
        "workload.data.glob='**/*.txt'",
        "workload.data.validation_share=0.2",
        "workload.data.test_share=0.2",
    ]
    threads, found = torch.get_num_threads(), []
    for name, changes in (("lm-tiny", own), ("vision-small", STEP[4:4])):
        recipe = load_recipe(
            name, [*(each for each in STEP if name == "lm-tiny" or "samples" not in each), *changes]
        )
        train(recipe, RunContext(folder / name, cache=folder / "cache"))
        found.append(open_predictor(str(folder / name)))
    torch.set_num_threads(threads)
    return tuple(found)
