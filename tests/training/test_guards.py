"""Guards: the action follows from the latest losses only, and their state is part of a checkpoint."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trainfleet.training.recipe.schema_control import GuardsConfig
from trainfleet.training.trainer.guards import Guards


def guards(**settings: Any) -> Guards:
    return Guards(GuardsConfig(window=10, **settings))


def calm(guard: Guards, count: int = 10) -> None:
    for step in range(count):
        assert guard.check(2.0 + 0.01 * (step % 3), 1.0).action == "go"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("action", ["stop", "skip", "roll_back"])
def test_a_nan_or_inf_gradient_causes_the_action_of_the_recipe(bad: float, action: Any) -> None:
    verdict = guards(nan=action).check(2.0, bad)
    assert (verdict.action, verdict.why) == (action, "the gradient is NaN or Inf")


def test_a_spike_is_detected_after_half_a_window() -> None:
    guard = guards(spike="skip")
    calm(guard, 4)
    assert guard.check(9.0, 1.0).action == "go"
    guard = guards(spike="skip")
    calm(guard)
    assert guard.check(2.05, 1.0).action == "go"
    verdict = guard.check(9.0, 1.0)
    assert verdict.action == "skip"
    assert verdict.why.startswith("the loss spiked to 9.0000; the previous 10 steps had 2.0")


def test_a_rejected_loss_does_not_change_the_window() -> None:
    guard = guards(spike="skip", limit=100)
    calm(guard)
    assert {guard.check(9.0, 1.0).action for _ in range(30)} == {"skip"}
    assert guard.check(2.0, 1.0).action == "go"


def test_without_a_guard_every_finite_step_is_accepted() -> None:
    guard = guards()
    calm(guard)
    assert guard.check(1e6, 1e6).action == "go"


def test_too_many_rejected_steps_in_a_row_end_the_run() -> None:
    guard = guards(nan="skip", limit=2)
    calm(guard)
    actions = [guard.check(math.nan, math.nan).action for _ in range(3)]
    assert actions == ["skip", "skip", "stop"]
    guard = guards(nan="skip", limit=2)
    for _ in range(4):
        assert guard.check(math.nan, 1.0).action == "skip"
        assert guard.check(2.0, 1.0).action == "go"


def test_a_checkpoint_holds_the_window() -> None:
    first, second = guards(spike="stop"), guards(spike="stop")
    calm(first)
    second.load_state(first.state())
    assert second.check(9.0, 1.0) == first.check(9.0, 1.0)
    assert second.check(9.0, 1.0).action == "stop"
