"""The recipe sections `publish` and `tune`, which apply after training. Neither changes a loss."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainfleet.training.workloads.settings import Section


class Gate(Section):
    """What a metric must reach before the run can be published."""

    min: float | None = Field(None, description="Lowest accepted value.")
    max: float | None = Field(None, description="Highest accepted value.")


class PublishConfig(Section):
    """Conditions for `trainfleet publish`."""

    gates: dict[str, Gate] = Field(
        {}, description="By metric of the validation or test split, such as test/loss: {max: 2.0}."
    )
    require_test: bool = Field(
        True, description="Require a gate on the test split, which influences no training decision."
    )


class Space(Section):
    """The values of one key. Give exactly one of these."""

    choice: list[Any] | None = Field(None, min_length=1, description="One of these values.")
    uniform: tuple[float, float] | None = Field(None, description="A number in this range.")
    log_uniform: tuple[float, float] | None = Field(
        None, description="A number in this range, uniform on a logarithmic scale."
    )
    integer: tuple[int, int] | None = Field(None, description="An integer in this range, ends included.")

    def kind(self) -> str | None:
        """The distribution that is given; None unless there is exactly one."""
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        return given[0] if len(given) == 1 else None

    def ends(self) -> list[Any]:
        """The values to validate: every choice, or both ends of the range."""
        return list(self.choice or self.uniform or self.log_uniform or self.integer or ())


class TuneConfig(Section):
    """A hyperparameter search for `trainfleet tune`."""

    metric: str = Field("validation/loss", description="Validation metric that trials are compared by.")
    mode: Literal["min", "max"] = Field(
        "min", description="Whether a smaller or a larger `metric` is better."
    )
    trials: int = Field(8, ge=1, le=10_000, description="Number of trials.")
    scheduler: Literal["asha", "hyperband", "median", "none"] = Field(
        "asha",
        description="Which trials end early. asha: one in `reduction` continues at each rung. hyperband: the "
        "same with a later first rung for some trials. median: those worse than the median of the "
        "finished trials after as many validations. none: no trial.",
    )
    grace: int = Field(1, ge=1, description="Validations of each trial before it can be ended.")
    reduction: int = Field(
        3, ge=2, description="asha, hyperband: one in this many trials continues at each rung."
    )
    retries: int = Field(
        0, ge=0, description="How often a failed trial is launched again, from its newest checkpoint."
    )
    sampler: Literal["optuna", "random"] = Field(
        "optuna", description="How the next trial's values are chosen."
    )
    seed: int = Field(0, ge=0, description="Seed of the sampler.")
    concurrent: int = Field(1, ge=1, description="Trials that run at the same time.")
    space: dict[str, Space] = Field(
        min_length=1,
        description="Values by recipe key, such as optimizer.lr: {log_uniform: [1e-4, 1e-2]}.",
    )
