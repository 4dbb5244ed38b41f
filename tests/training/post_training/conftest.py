"""One trained run for the tests of what comes after training. Tests that change it take a copy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from tests.training.conftest import cache, text_folder  # noqa: F401 - fixtures
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunContext, default_cache
from trainfleet.training.trainer.loop import train


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared data of these tests. Processes that they start find it, too."""
    os.environ.setdefault("TRAINFLEET_CACHE", str(tmp_path_factory.mktemp("after-cache")))
    return default_cache()


@pytest.fixture(scope="session")
def recipe(text_folder: Path) -> Recipe:  # noqa: F811 - the fixture
    """`lm-tiny` on the small text, twelve steps, three checkpoints kept."""
    return load_recipe(
        "lm-tiny",
        [
            f"workload.data.source={text_folder}",
            "workload.data.glob='**/*.txt'",
            "workload.data.validation_share=0.15",
            "workload.data.test_share=0.15",
            "scaling.workers=1",
            "steps=12",
            "validation.every=4",
            "validation.samples=null",
            "checkpoint.every=4",
            "checkpoint.keep_last=3",
            "log.tensorboard=false",
        ],
    )


@pytest.fixture(scope="session")
def run_dir(recipe: Recipe, own_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run. Tests that write into it take a copy."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    threads = torch.get_num_threads()
    train(recipe, RunContext(folder, cache=own_cache))
    torch.set_num_threads(threads)
    return folder


@pytest.fixture(scope="session")
def pictures(own_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run of `vision-small`; its gates are in the recipe."""
    changes = [
        "scaling.workers=1",
        "steps=20",
        "optimizer.warmup=2",
        "validation.every=10",
        "checkpoint.every=10",
        "log.tensorboard=false",
    ]
    gates = ["publish={gates: {test/accuracy: {min: 0.0}, validation/loss: {max: 100}}}"]
    folder = tmp_path_factory.mktemp("pictures") / "trained"
    threads = torch.get_num_threads()
    train(load_recipe("vision-small", [*changes, *gates]), RunContext(folder, cache=own_cache))
    torch.set_num_threads(threads)
    return folder


@pytest.fixture
def run_copy(run_dir: Path, tmp_path: Path) -> Path:
    """A copy of the language model's run, for tests that write into it."""
    return Path(shutil.copytree(run_dir, tmp_path / "run"))


@pytest.fixture
def pictures_copy(pictures: Path, tmp_path: Path) -> Path:
    """A copy of the image classification run, for tests that write into it."""
    return Path(shutil.copytree(pictures, tmp_path / "pictures"))
