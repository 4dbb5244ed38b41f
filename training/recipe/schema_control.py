"""The recipe sections `guards` and `controllers`: what a run does about bad steps, and adjusts itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trainfleet.training.workloads.settings import Section

OFF = BeforeValidator(lambda value: "off" if value is False else value)
"""YAML reads an unquoted `off` as false."""


class GuardsConfig(Section):
    """What to do with a step whose gradient is NaN or Inf, or whose loss spikes."""

    nan: Literal["stop", "skip", "roll_back"] = Field("stop", description="On a NaN or Inf gradient.")
    spike: Annotated[Literal["off", "stop", "skip", "roll_back"], OFF] = Field(
        "off", description="On a loss far above the previous ones."
    )
    sigmas: float = Field(
        6.0, gt=0, description="Standard deviations above the mean of the previous losses that make a spike."
    )
    window: int = Field(
        50,
        ge=4,
        description="Number of previous losses to compare with; detection starts when half of them are "
        "known.",
    )
    limit: int = Field(5, ge=1, description="Consecutive rejected steps after which the run stops.")


class RateControl(Section):
    """Controls the learning rate; every kind multiplies the schedule's rate."""

    kind: Annotated[Literal["off", "plateau", "restarts", "backoff"], OFF] = Field(
        "off",
        description="`plateau` lowers the rate when validation stalls, `restarts` repeats cosine cycles, "
        "`backoff` lowers it after a loss spike.",
    )
    metric: str = Field("validation/loss", description="Metric that plateau and restarts watch.")
    mode: Literal["min", "max"] = Field(
        "min", description="Whether a smaller or a larger `metric` is better."
    )
    factor: float = Field(0.5, gt=0, lt=1, description="Multiplier of the rate, or of a cycle's peak.")
    floor: float = Field(0.01, gt=0, le=1, description="Smallest multiple of the schedule's rate.")
    patience: int = Field(2, ge=1, description="plateau: consecutive validations without improvement.")
    threshold: float = Field(1e-3, ge=0, description="plateau: minimum relative improvement.")
    cycle: int = Field(100, ge=2, description="restarts: steps of the first cycle.")
    stretch: float = Field(
        2.0, ge=1, description="restarts: length of each cycle relative to the previous one."
    )
    sigmas: float = Field(
        4.0, gt=0, description="backoff: standard deviations above the previous losses that make a spike."
    )
    window: int = Field(30, ge=4, description="backoff: number of previous losses to compare with.")
    recover: int = Field(50, ge=1, description="backoff: steps until one reduction is recovered.")


class BatchControl(Section):
    """Controls the global batch by the gradient noise scale."""

    kind: Annotated[Literal["off", "noise"], OFF] = Field(
        "off", description="`noise` grows the batch as the gradient noise scale grows."
    )
    largest: int = Field(1024, ge=1, description="Largest global batch.")
    every: int = Field(
        5, ge=1, description="Steps between measurements; each costs one additional gradient reduction."
    )
    rule: Literal["none", "sqrt", "linear"] = Field(
        "sqrt", description="How the learning rate scales with the batch."
    )


class ControllersConfig(Section):
    """What the run may adjust itself. Decisions are logged, reported and part of the checkpoint."""

    rate: RateControl = RateControl()
    batch: BatchControl = BatchControl()
    micro_batch: Literal["fixed", "probe"] = Field(
        "fixed", description="probe: use the fastest micro batch that fits, measured before the first step."
    )
