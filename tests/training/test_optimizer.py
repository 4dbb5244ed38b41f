"""Schedules, and the settings of torch that a recipe selects."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from trainfleet.training.recipe.schema import Optimizer, Recipe
from trainfleet.training.trainer.optimizer import learning_rate
from trainfleet.training.trainer.state import torch_settings

Make = Callable[..., Recipe]


def test_wsd_is_constant_and_then_falls_linearly() -> None:
    settings = Optimizer(schedule="wsd", lr=1.0, warmup=4, decay=0.2, min_ratio=0.1)
    rates = [learning_rate(settings, step, 100) for step in range(100)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert set(rates[4:80]) == {1.0}
    assert rates[-1] == pytest.approx(0.1)
    falls = [before - after for before, after in itertools.pairwise(rates[79:])]
    assert falls == pytest.approx([0.9 / 20] * 20)


def test_a_longer_run_with_wsd_has_the_same_rates_until_its_decay() -> None:
    settings = Optimizer(schedule="wsd", lr=1.0)
    assert [learning_rate(settings, step, 100) for step in range(90)] == [
        learning_rate(settings, step, 200) for step in range(90)
    ]
    assert learning_rate(settings, 0, 1) == pytest.approx(settings.min_ratio)


@pytest.mark.parametrize(
    ("value", "device", "enabled"),
    [
        ("auto", "cpu", True),
        ("auto", "cuda:0", False),
        ("true", "cuda:0", True),
        ("true", "cpu", True),
        ("false", "cpu", False),
    ],
)
def test_operations_are_deterministic_where_the_recipe_says(
    tiny: Make, value: str, device: str, enabled: bool
) -> None:
    with torch_settings(tiny(f"deterministic={value}"), device):
        assert torch.are_deterministic_algorithms_enabled() == enabled
    assert not torch.are_deterministic_algorithms_enabled()
