"""A small text, a recipe that trains on it in about a second, and functions that run it on one rank or
several.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.ranks import start_ranks
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime import process_group, ray_cluster
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.loop import train


@pytest.fixture
def asked_of_ray(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the latest `RayCluster.train` asks of Ray Train, which then trains nothing."""
    asked: dict[str, Any] = {}

    class Trainer:
        def __init__(self, *_: Any, **named: Any) -> None:
            asked.update(named)

        def fit(self) -> None: ...

    monkeypatch.setattr(ray_cluster, "_trainer_class", lambda *_: Trainer)
    return asked


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty files of synthetic sentences, some without a newline at their end."""
    folder = tmp_path_factory.mktemp("text")
    rng = random.Random(7)
    words = ["gradient", "tensor", "rank", "a", "the", "of", "sums", "step", "café", "loss"]
    for number in range(40):
        lines = [" ".join(rng.choices(words, k=8)) + "." for _ in range(30)]
        (folder / f"part{number % 4}").mkdir(exist_ok=True)
        (folder / f"part{number % 4}" / f"{number:02}.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token files, shared by all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def tiny(text_folder: Path) -> Callable[..., Recipe]:
    """`lm-tiny` on the small text with one worker and every step logged. Takes overrides."""

    def make(*overrides: str) -> Recipe:
        fixed = [
            f"workload.data.source={text_folder}",
            "workload.data.glob='**/*.txt'",
            "workload.data.validation_share=0.15",
            "workload.data.test_share=0.15",
            "scaling.workers=1",
            "steps=12",
            "validation.every=4",
            "checkpoint.every=4",
            "log.every=1",
            "log.tensorboard=false",
        ]
        return load_recipe("lm-tiny", [*fixed, *overrides])

    return make


@pytest.fixture
def run(cache: Path) -> Callable[..., RunResult]:
    """Train a recipe in this process, as the only rank."""

    def call(recipe: Recipe, run_dir: Path, **context: Any) -> RunResult:
        torch.manual_seed(random.randrange(2**31))  # a run must not depend on earlier tests
        return train(recipe, RunContext(run_dir, cache=cache, **context))

    return call


@pytest.fixture
def run_ranks(cache: Path) -> Callable[..., list[int]]:
    """Train a recipe on several ranks; returns their exit codes. `before(rank)` is called first in each rank
    and may patch modules.
    """

    def call(
        recipe: Recipe,
        run_dir: Path,
        world_size: int,
        before: Callable[[int], Any] = lambda rank: None,
        **context: Any,
    ) -> list[int]:
        def work(rank: int) -> None:
            before(rank)
            world = process_group.init_from_env(use_gpu=False, timeout_s=120)
            train(
                recipe,
                RunContext(run_dir, world.rank, world.world_size, world.local_rank, cache=cache, **context),
            )
            process_group.shutdown()

        return start_ranks(work, world_size)

    return call
