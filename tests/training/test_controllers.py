"""Controllers: each decides by its rule, and resumes from a checkpoint with the same decisions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.recipe.schema_control import RateControl
from trainfleet.training.trainer.controllers import Controllers, Decision, StepStats
from trainfleet.training.trainer.controllers.batch import NoiseScale, choose_micro_batch, micro_batch_sizes
from trainfleet.training.trainer.controllers.rate import make_rate_controller

Make = Callable[..., Recipe]


def rate(**settings: Any) -> Any:
    return make_rate_controller(RateControl(**settings))


def validate(controller: Any, *values: float) -> list[tuple[float, str]]:
    return [
        (controller.factor, controller.observe(step, 1.0, {"validation/loss": value}) and "why")
        for step, value in enumerate(values)
    ]


def test_a_plateau_lowers_the_rate_only_after_its_patience() -> None:
    controller = rate(kind="plateau", patience=2, factor=0.5)
    validate(controller, 3.0, 2.0, 1.9999, 2.1)
    assert controller.factor == 0.5
    validate(controller, 1.5, 1.6)
    assert controller.factor == 0.5
    assert (
        controller.observe(9, 1.0, {"validation/loss": 1.6})
        == "validation/loss did not improve on 1.5000 for 2 validations"
    )
    assert controller.factor == 0.25
    assert controller.observe(10, 1.0, None) == ""


def test_a_plateau_of_a_metric_that_is_maximized_and_the_minimum_rate() -> None:
    controller = rate(
        kind="plateau", metric="validation/accuracy", mode="max", patience=1, factor=0.1, floor=0.05
    )
    for value in (0.5, 0.6, 0.6, 0.6, 0.6):
        controller.observe(1, 1.0, {"validation/accuracy": value})
    assert controller.factor == 0.05
    assert controller.observe(2, 1.0, {"validation/accuracy": 0.6}) == ""


def test_warm_restarts_anneal_then_restart_with_longer_cycles() -> None:
    controller = rate(kind="restarts", cycle=4, stretch=2, floor=0.1)
    factors = []
    reasons = []
    for step in range(12):
        factors.append(round(controller.factor, 4))
        reasons.append(controller.observe(step, 1.0, None))
    assert factors[:5] == [1.0, pytest.approx(0.8682, abs=1e-3), 0.55, pytest.approx(0.2318, abs=1e-3), 1.0]
    assert controller.factor == 1.0
    assert [step for step, why in enumerate(reasons) if why] == [3, 11]


def test_a_cycle_without_improvement_lowers_the_next_peak() -> None:
    controller = rate(kind="restarts", cycle=2, stretch=1, factor=0.5)
    for step, value in enumerate((3.0, 2.0, 2.5, 2.4)):
        controller.observe(step, 1.0, {"validation/loss": value})
    assert controller.factor == 0.5


def test_a_loss_spike_lowers_the_rate_until_it_recovers() -> None:
    controller = rate(kind="backoff", window=8, factor=0.5, recover=10)
    for step in range(8):
        assert controller.observe(step, 2.0 + 0.01 * (step % 2), None) == ""
    assert controller.observe(8, 7.0, None).startswith("the loss spiked to 7.0000")
    assert controller.factor == 0.5
    for step in range(9, 19):
        controller.observe(step, 2.0, None)
    assert controller.factor == pytest.approx(1.0)
    assert controller.observe(20, math.nan, None) != ""


def test_the_noise_scale_of_a_known_gradient_is_found() -> None:
    """Gradients of 64 parameters, mean g, each sample with variance s^2 per parameter: tr(S)/|G|^2 = 64 s^2 /
    |g|^2.
    """
    rng = torch.Generator().manual_seed(0)
    mean = torch.full((64,), 0.1)
    scale, batch, spread = NoiseScale(), 32, 0.5
    for _ in range(400):
        samples = mean + spread * torch.randn(batch, 64, generator=rng)
        scale.add(float(samples[: batch // 2].mean(0).norm()), float(samples.mean(0).norm()), batch)
    true = 64 * spread**2 / float(mean.norm()) ** 2
    assert scale.value() == pytest.approx(true, rel=0.5)
    assert true == pytest.approx(25.0, rel=1e-5)


def live(step: int, noise: tuple[float, float] | None) -> StepStats:
    return StepStats(step, 2.0, noise)


def test_a_batch_grows_while_the_noise_scale_is_large_and_the_rate_follows(tiny: Make) -> None:
    controllers = Controllers(
        tiny(
            "controllers.batch.kind=noise",
            "controllers.batch.largest=64",
            "optimizer.schedule=constant",
            "optimizer.warmup=0",
        ),
        12,
    )
    assert (controllers.global_batch, controllers.measures_noise(0), controllers.measures_noise(1)) == (
        16,
        True,
        False,
    )
    base = controllers.learning_rate(0)
    decisions = [each for step in range(1, 30) for each in controllers.after_step(live(step, (3.0, 2.2)))]
    assert [(each.what, each.old, each.new) for each in decisions] == [
        ("global batch", 16, 32),
        ("global batch", 32, 64),
    ]
    assert all("noise scale" in each.why for each in decisions)
    assert controllers.learning_rate(0) == pytest.approx(2 * base)
    assert not controllers.measures_noise(0)


def test_a_batch_with_a_small_noise_scale_is_kept(tiny: Make) -> None:
    controllers = Controllers(tiny("controllers.batch.kind=noise"), 12)
    assert [each for step in range(1, 30) for each in controllers.after_step(live(step, (1.01, 1.0)))] == []


@pytest.mark.parametrize("kind", ["plateau", "restarts", "backoff"])
def test_a_resume_changes_no_decision(tiny: Make, kind: str) -> None:
    recipe = tiny(
        f"controllers.rate.kind={kind}",
        "controllers.rate.cycle=7",
        "controllers.rate.window=6",
        "controllers.batch.kind=noise",
    )
    rng = random.Random(1)
    shown = [
        StepStats(
            step,
            rng.choice([2.0, 2.1, 8.0]),
            (rng.uniform(2, 3), rng.uniform(1, 2)),
            {"validation/loss": rng.uniform(1.9, 2.0)},
        )
        for step in range(60)
    ]

    def decide(cut: int | None) -> tuple[list[Decision], list[float]]:
        controllers, decisions, rates = Controllers(recipe, 60), [], []
        for step, each in enumerate(shown):
            if step == cut:
                resumed = Controllers(recipe, 60)
                resumed.load_state(controllers.state())
                controllers = resumed
            decisions += controllers.after_step(each)
            rates.append(controllers.learning_rate(step * 16))
        return decisions, rates

    whole = decide(None)
    assert whole[0]
    assert [decide(cut) for cut in (1, 13, 31, 59)] == [whole] * 4


def test_without_a_controller_the_rate_is_that_of_the_schedule(tiny: Make) -> None:
    from trainfleet.training.trainer.optimizer import learning_rate

    recipe = tiny()
    controllers = Controllers(recipe, 12)
    controllers.after_step(StepStats(1, 99.0, None, {"validation/loss": 99.0}))
    assert [controllers.learning_rate(step * 16) for step in range(12)] == [
        learning_rate(recipe.optimizer, step, 12) for step in range(12)
    ]


def test_micro_batches_divide_the_global_batch_evenly() -> None:
    assert micro_batch_sizes(24, 2) == [1, 2, 3, 4, 6, 12]
    assert micro_batch_sizes(10, 4) == []


@pytest.mark.parametrize(
    ("seconds", "start", "chosen"),
    [
        ({4: 4.0, 8: 5.0, 16: 6.0, 32: 13.0}, 4, 16),  # faster per sample until 16
        ({4: 4.0, 8: 5.0}, 4, 8),  # 16 does not fit into memory
        ({2: 1.0, 1: 1.0}, 4, 2),  # that of the recipe does not fit
        ({}, 4, 4),
    ],
)
def test_the_fastest_micro_batch_that_fits_is_taken(
    seconds: dict[int, float], start: int, chosen: int
) -> None:
    size, why = choose_micro_batch([1, 2, 4, 8, 16, 32], start, seconds.get)
    assert size == chosen
    assert why
