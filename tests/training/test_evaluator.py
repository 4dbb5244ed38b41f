"""Which samples a validation reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from torch import nn

from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.evaluator import SAMPLES, Evaluator
from trainfleet.training.trainer.step import Stepper
from trainfleet.training.trainer.weight_average import WeightAverage
from trainfleet.training.workloads import Workload

Make = Callable[..., Recipe]


@pytest.mark.parametrize(
    ("size", "changes", "count"),
    [
        (7, (), 7),
        (50_000_000, (), SAMPLES),
        (50_000_000, ("validation.samples=20000",), 20_000),
        (50_000_000, ("validation.samples=3",), 3),
    ],
)
def test_a_validation_of_a_large_split_is_sampled(
    tiny: Make, size: int, changes: tuple[str, ...], count: int
) -> None:
    workload = cast("Workload", SimpleNamespace(size=lambda split: size))
    recipe = tiny("validation.samples=null", *changes)
    stepper, average = cast("Stepper", None), WeightAverage(recipe.ema, nn.Linear(1, 1))
    samples = Evaluator(recipe, RunContext(Path("unused")), workload, stepper, average).samples
    for split in ("validation", "test"):
        assert len(samples[split]) == count
        assert samples[split][0] == 0
        assert samples[split][-1] == size * (count - 1) // count
