"""Trackers: where rows go besides metrics.jsonl. TensorBoard, Prometheus, MLflow, Weights & Biases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from trainfleet.errors import MissingToolError, Problem
from trainfleet.training.recipe.changes import flatten
from trainfleet.training.recipe.load import dump
from trainfleet.training.recipe.schema import Recipe

Notify = Callable[[str, str], Any]


class Tracker(Protocol):
    """A destination of rows."""

    def write_row(self, row: Mapping[str, Any]) -> None:
        """Write a row of metrics.jsonl."""

    def close(self) -> None:
        """Flush and close."""


class FailsafeTracker:
    """A tracker that is disabled after its first failure, which is reported once. NOTE: never ends a run."""

    def __init__(self, name: str, make: Callable[[], Tracker], notify: Notify) -> None:
        self._name, self._notify = name, notify
        self._tracker: Tracker | None = None
        self._try(lambda: setattr(self, "_tracker", make()))

    def write_row(self, row: Mapping[str, Any]) -> None:
        if (tracker := self._tracker) is not None:
            self._try(lambda: tracker.write_row(row))

    def close(self) -> None:
        if (tracker := self._tracker) is not None:
            self._try(tracker.close)

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises, the training continues
            self._tracker = None
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            self._notify(
                "warning",
                f"{self._name} is disabled for this run ({reason}); metrics.jsonl has all rows",
            )


def make_trackers(recipe: Recipe, run_dir: Path, resumed_from: int, notify: Notify) -> list[FailsafeTracker]:
    """The trackers that a recipe's `log` enables.

    Raises:
        MissingToolError: a tracker's package is not installed.
    """
    log = recipe.log
    requested = [name for name, value in (("mlflow", log.mlflow), ("wandb", log.wandb)) if value]
    missing = [name for name in requested if find_spec(name) is None]
    if missing:
        raise MissingToolError(
            "a tracker is not installed",
            [Problem(f"log.{name}", f"{name} is not installed", f"pip install {name}") for name in missing],
        )
    makers: dict[str, Callable[[], Tracker]] = {}
    if log.tensorboard:
        from trainfleet.training.trackers.tensorboard import TensorBoard

        makers["TensorBoard"] = lambda: TensorBoard(run_dir / "tensorboard", resumed_from)
    if log.prometheus != "off":
        from trainfleet.training.trackers.prometheus import Prometheus

        makers["Prometheus"] = lambda: Prometheus(recipe.name, recipe.workload.name, log.prometheus)
    if log.mlflow:
        from trainfleet.training.trackers.mlflow import Mlflow

        uri = log.mlflow
        makers["MLflow"] = lambda: Mlflow(
            uri, recipe.name, run_dir, dict(flatten(recipe.model_dump(mode="json"))), dump(recipe)
        )
    if log.wandb:
        from trainfleet.training.trackers.wandb import WeightsAndBiases

        project = log.wandb
        makers["Weights & Biases"] = lambda: WeightsAndBiases(
            project, recipe.name, run_dir, recipe.model_dump(mode="json")
        )
    return [FailsafeTracker(name, make, notify) for name, make in makers.items()]


def metrics_of(row: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """The finite numbers of a row as split, name and value: `train loss 2.1`, `validation loss 2.3`."""
    for name, value in row.items():
        if (
            name in ("step", "steps")
            or isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            continue
        split, slash, metric = name.partition("/")
        yield (split, metric, float(value)) if slash else (str(row.get("kind", "train")), name, float(value))
