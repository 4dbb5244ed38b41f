"""The sections of a recipe that say what comes after training: `publish` and `tune`. Nothing here changes a
loss.

Used by `trainfleet.training.recipe.load`. Easy to get wrong: both may change between a kill and its resume,
so they stand in `recipe.FREE`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from trainfleet.training.recipe.sections import Section

Finding = tuple[str, str, str]
"""Key of the recipe, what is wrong, what would be right."""


class Gate(Section):
    """What a metric must reach for the run to be published."""

    min: float | None = Field(None, description="At least.")
    max: float | None = Field(None, description="At most.")


class Publish(Section):
    """What must hold for `trainfleet publish`."""

    gates: dict[str, Gate] = Field(
        {}, description="By metric of the validation or test split, such as test/loss: {max: 2.0}."
    )
    require_test: bool = Field(
        True, description="Want a gate on the test split, which no decision of the training has seen."
    )


class Space(Section):
    """The values of one key; exactly one of these."""

    choice: list[Any] | None = Field(None, min_length=1, description="One of these values.")
    uniform: tuple[float, float] | None = Field(None, description="Between two numbers.")
    log_uniform: tuple[float, float] | None = Field(
        None, description="Between two numbers, each factor as likely as another."
    )
    integer: tuple[int, int] | None = Field(None, description="A whole number between two, both included.")

    def kind(self) -> str | None:
        """Which one is given; None unless it is one."""
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        return given[0] if len(given) == 1 else None

    def ends(self) -> list[Any]:
        """The values that must be right for all to be: every choice, or both ends."""
        return list(self.choice or self.uniform or self.log_uniform or self.integer or ())


class Tune(Section):
    """A search over recipes, for `trainfleet tune`."""

    metric: str = Field("validation/loss", description="What trials are compared by: a validation metric.")
    mode: Literal["min", "max"] = "min"
    trials: int = Field(8, ge=1, le=10_000)
    scheduler: Literal["asha", "none"] = Field(
        "asha",
        description="asha: trials of one worker that do badly end early; those of several always go to their end.",
    )
    grace: int = Field(1, ge=1, description="asha: validations that each trial has before it can be ended.")
    reduction: int = Field(3, ge=2, description="asha: of so many trials one goes on at each rung.")
    sampler: Literal["optuna", "random"] = "optuna"
    seed: int = Field(0, ge=0)
    concurrent: int = Field(1, ge=1, description="Trials at one time.")
    space: dict[str, Space] = Field(
        min_length=1,
        description="Values by key of the recipe, such as optimizer.lr: {log_uniform: [1e-4, 1e-2]}.",
    )


def broken_gates(publish: Publish, known: list[str]) -> Iterator[Finding]:
    """Gates that can never be judged."""
    from trainfleet.suggestions import did_you_mean

    for name, gate in publish.gates.items():
        where = f"publish.gates.{name}"
        if name not in known:
            yield where, f"`{name}` is not measured", did_you_mean(name, known)
        if gate.min is None and gate.max is None:
            yield where, "asks for nothing", "give `min`, `max` or both"
        elif gate.min is not None and gate.max is not None and gate.min > gate.max:
            yield where, f"no number is at least {gate.min:g} and at most {gate.max:g}", "min below max"
    if publish.gates and publish.require_test and not any(name.startswith("test/") for name in publish.gates):
        yield (
            "publish.gates",
            "none is on the test split",
            "such as test/loss: {max: 2.0}, or publish.require_test=false",
        )


def broken_space(tune: Tune, known: list[str]) -> Iterator[Finding]:
    """What of a search makes no sense whatever the recipe; whether its keys and values fit the recipe is
    judged by `trainfleet.training.tune.trials`.
    """
    from trainfleet.suggestions import did_you_mean

    if tune.metric not in known:
        yield "tune.metric", f"`{tune.metric}` is not measured", did_you_mean(tune.metric, known)
    for name, space in tune.space.items():
        where, kind = f"tune.space.{name}", space.kind()
        if kind is None:
            yield where, "wants exactly one way to choose", f"one of {', '.join(Space.model_fields)}"
        elif kind != "choice" and not space.ends()[0] < space.ends()[1]:
            yield f"{where}.{kind}", f"{space.ends()} is no range", "the smaller number first"
        elif kind == "log_uniform" and space.ends()[0] <= 0:
            yield f"{where}.{kind}", f"{space.ends()[0]:g} has no logarithm", "numbers above 0"
