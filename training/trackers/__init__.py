"""Where the rows of a run go besides metrics.jsonl: TensorBoard, Prometheus, MLflow, Weights & Biases.

Used by the journal, on rank 0. A sink has `row` and `close`, and is one file. Easy to get wrong: a tracker
that is down must
never cost a training, so a sink that fails is told of once and left out from then on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from trainfleet.errors import MissingToolError, Problem
from trainfleet.training.recipe.load import dump
from trainfleet.training.recipe.schema import Recipe

Notify = Callable[[str, str], Any]


class Sink(Protocol):
    """Somewhere that rows go."""

    def row(self, row: Mapping[str, Any]) -> None:
        """Take a row of metrics.jsonl."""

    def close(self) -> None:
        """Bring out what was taken, and let go."""


class Guarded:
    """A sink whose failures are told of once and then ignored."""

    def __init__(self, name: str, make: Callable[[], Sink], notify: Notify) -> None:
        self._name, self._notify = name, notify
        self._sink: Sink | None = None
        self._try(lambda: setattr(self, "_sink", make()))

    def row(self, row: Mapping[str, Any]) -> None:
        if (sink := self._sink) is not None:
            self._try(lambda: sink.row(row))

    def close(self) -> None:
        if (sink := self._sink) is not None:
            self._try(sink.close)

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises, the training goes on
            self._sink = None
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            self._notify(
                "warning",
                f"{self._name} takes no more rows of this run ({reason}); metrics.jsonl has them all",
            )


def make_sinks(recipe: Recipe, run_dir: Path, resumed_from: int, notify: Notify) -> list[Guarded]:
    """The sinks that a recipe's `log` asks for.

    Raises:
        MissingToolError: a tracker's package is not installed.
    """
    log = recipe.log
    missing = [name for name in ("mlflow", "wandb") if getattr(log, name) and find_spec(name) is None]
    if missing:
        raise MissingToolError(
            "a tracker is not installed",
            [Problem(f"log.{name}", f"{name} is not here", f"pip install {name}") for name in missing],
        )
    makers: dict[str, Callable[[], Sink]] = {}
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
            uri, recipe.name, run_dir, dict(flat(recipe.model_dump(mode="json"))), dump(recipe)
        )
    if log.wandb:
        from trainfleet.training.trackers.wandb import WeightsAndBiases

        project = log.wandb
        makers["Weights & Biases"] = lambda: WeightsAndBiases(
            project, recipe.name, run_dir, recipe.model_dump(mode="json")
        )
    return [Guarded(name, make, notify) for name, make in makers.items()]


def figures(row: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """The finite numbers of a row with the split each is of: `train loss 2.1`, `validation loss 2.3`."""
    for name, value in row.items():
        if (
            name in ("step", "steps")
            or isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            continue
        split, slash, figure = name.partition("/")
        yield (split, figure, float(value)) if slash else (str(row.get("kind", "train")), name, float(value))


def flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a recipe, one key each."""
    for key, member in value.items():
        if isinstance(member, Mapping):
            yield from flat(member, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", member
