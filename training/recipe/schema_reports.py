"""The recipe sections `log` and `profile`: what a run records about itself. Neither changes a loss."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trainfleet.training.recipe.schema_control import OFF
from trainfleet.training.workloads.settings import Section


class Log(Section):
    """How often to log, and to which trackers."""

    every: int = Field(
        10, ge=1, description="Steps per log line, row of metrics.jsonl and TensorBoard point."
    )
    tensorboard: bool = Field(True, description="Write TensorBoard files to the run's folder.")
    prometheus: Annotated[Literal["off", "ray"] | Annotated[int, Field(ge=1024, le=65535)], OFF] = Field(
        "off",
        description="A port of rank 0's machine on which to serve gauges, or `ray` to use Ray's metrics "
        "agents.",
    )
    mlflow: str | None = Field(
        None,
        description="MLflow tracking URI, such as http://mlflow:5000 or sqlite:///mlflow.db; needs mlflow.",
    )
    wandb: str | None = Field(
        None, description="Weights & Biases project; needs wandb. WANDB_MODE=offline needs no network."
    )


def _step_range(value: Any) -> Any:
    """`steps: 10` is a number in YAML."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Profile(Section):
    """Steps to record with torch's profiler, in files below `profile/` of the run. They are slower, and their
    losses are the same.
    """

    steps: Annotated[str, BeforeValidator(_step_range)] | None = Field(
        None,
        pattern=r"^[1-9][0-9]{0,8}(-[1-9][0-9]{0,8})?$",
        description="First and last step to record, such as 10-14, or one step. null = none.",
    )
    ranks: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0,), min_length=1, description="Ranks that record, each in files of its own."
    )

    def first_and_last(self) -> tuple[int, int] | None:
        """The steps to record, from 1; None if there are none."""
        if self.steps is None:
            return None
        first, _, last = self.steps.partition("-")
        return int(first), int(last or first)
