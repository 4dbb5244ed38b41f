"""Predicts rows in the user's format with a model from a run, a checkpoint or a published folder.

If a batch holds an unreadable row, the rows are read one by one, so that the others still get predictions.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.pydantic_messages import explain
from trainfleet.suggestions import did_you_mean
from trainfleet.training.inference.loaded import autocast, identity_of, open_run, set_precision
from trainfleet.training.workloads import missing_hooks

if TYPE_CHECKING:
    import torch

    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.workloads import Precision

Row = Mapping[str, Any]
Hear = Callable[[int, str], Any]
"""Called with a row's number and the next piece of its prediction."""
PROVENANCE = "provenance.json"


@dataclass(frozen=True)
class Answer:
    """A row's prediction, or the error."""

    prediction: dict[str, Any] | None
    error: str = ""


@dataclass(frozen=True)
class Call:
    """A row of a request, with validated settings, and where the pieces of its prediction go."""

    row: Row
    settings: Mapping[str, Any]
    hear: Callable[[str], Any] | None = None


class Predictor:
    """A loaded model that predicts rows.

    Attributes:
        path: the checkpoint or folder it was loaded from.
        identity: SHA-256 that changes with the weights.
        step: number of optimizer steps.
        precision: of the weights, as it was asked for.
        sharded: this rank has its share of the model, and all ranks must predict the same rows.
    """

    def __init__(
        self,
        recipe: Recipe,
        workload: Any,
        load: Callable[[], torch.nn.Module],
        *,
        path: str,
        identity: str,
        step: int,
        device: str,
        precision: Precision | None = None,
        sharded: bool = False,
    ) -> None:
        self.sharded = sharded
        self.recipe, self.workload, self._load = recipe, workload, load
        self.path, self.identity, self.step = path, identity, step
        self.device, self.precision = device, precision
        set_precision(workload, recipe, precision)
        missing = missing_hooks(workload, "read", "predict")
        if missing:
            what = f"has no {' and no '.join(f'`{name}`' for name in missing)}"
            raise InputError(
                "this workload's models cannot predict",
                [Problem(recipe.workload.name, what, "see docs/add-a-workload.md")],
            )

    @functools.cached_property
    def model(self) -> torch.nn.Module:
        """The model in evaluation mode on its device, loaded when it is first used."""
        return self._load()

    def check(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a prediction, validated; with their defaults if the workload declares them.

        Raises:
            InputError: names each setting that is unknown or has an invalid value.
        """
        known = self.workload.predict_settings
        if isinstance(known, type) and issubclass(known, BaseModel):
            try:
                return known.model_validate(dict(settings)).model_dump()
            except ValidationError as error:
                problems = [explain(each, known) for each in error.errors(include_url=False)]
                raise InputError("invalid prediction settings", problems) from error
        if known is None:
            parameters = inspect.signature(self.workload.predict).parameters.values()
            if any(each.kind is each.VAR_KEYWORD for each in parameters):
                return dict(settings)
            known = [each.name for each in parameters if each.name not in ("model", "batch", "hear")]
        problems = [
            Problem(name, "is not a prediction setting of this workload", did_you_mean(name, known))
            for name in settings
            if name not in known
        ]
        if problems:
            raise InputError("unknown settings", problems)
        return dict(settings)

    @property
    def streams(self) -> bool:
        """Whether predictions can be local_hear piece by piece."""
        return bool(self.workload.streams)

    def common(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that must be equal in a batch."""
        return {name: each for name, each in settings.items() if name not in self.workload.row_settings}

    def __call__(
        self, rows: Sequence[Row], *, hear: Hear | None = None, **settings: Any
    ) -> list[dict[str, Any]]:
        """One prediction per row. With `hear`, for a workload that streams, also piece by piece.

        Raises:
            InputError: names every row that cannot be read, by its number.
        """
        import torch

        batch = {name: value.to(self.device) for name, value in self.workload.read(rows).items()}
        if hear is not None:
            settings["hear"] = hear
        with torch.no_grad(), autocast(self.recipe, self.device, self.precision, sharded=self.sharded):
            found = list(self.workload.predict(self.model, batch, **settings))
        if len(found) != len(rows):
            what = f"gave {len(found)} predictions for {len(rows)} rows"
            raise TrainfleetError(
                "the workload's `predict` returned a wrong number of predictions",
                [Problem(self.recipe.workload.name, what, "return one per row, in order")],
            )
        return found

    def answers(self, rows: Sequence[Row], *, hear: Hear | None = None, **settings: Any) -> list[Answer]:
        """One answer per row; for an unreadable row, its error."""
        if not rows:
            return []
        try:
            return [Answer(each) for each in self(rows, hear=hear, **settings)]
        except InputError as error:
            if len(rows) == 1:
                return [Answer(None, "; ".join(f"{each.what}" for each in error.problems) or error.summary)]
        errors = [self._error(row) for row in rows]
        good = [place for place, error in enumerate(errors) if not error]
        mine = {
            name: [value[place] for place in good]
            if name in self.workload.row_settings and isinstance(value, list)
            else value
            for name, value in settings.items()
        }

        def hear_good(place: int, piece: str) -> None:
            if hear is not None:
                hear(good[place], piece)

        passed = hear_good if hear is not None else None
        found = iter(self([rows[place] for place in good], hear=passed, **mine) if good else [])
        return [Answer(None, error) if error else Answer(next(found)) for error in errors]

    def answers_of(self, calls: Sequence[Call]) -> list[Answer]:
        """Answers to rows of several requests, which have the same `common` settings."""
        settings: dict[str, Any] = self.common(calls[0].settings)
        for name in self.workload.row_settings:
            settings[name] = [each.settings.get(name) for each in calls]

        def hear(place: int, piece: str) -> None:
            if (listener := calls[place].hear) is not None:
                listener(piece)

        streamed = any(each.hear is not None for each in calls)
        return self.answers([each.row for each in calls], hear=hear if streamed else None, **settings)

    def _error(self, row: Row) -> str:
        try:
            self.workload.read([row])
        except InputError as error:
            return "; ".join(f"{each.what}" for each in error.problems) or error.summary
        return ""


def open_predictor(
    source: str,
    which: str = "best",
    device: str = "cpu",
    cache: Path | None = None,
    *,
    precision: Precision | None = None,
    load: bool = True,
    sharded: bool = False,
) -> Predictor:
    """Load a model for prediction.

    Args:
        source: folder or URL of a run or checkpoint, or a folder that `trainfleet publish` wrote.
        which: `best`, `newest` or `step-N`, if `source` is a run.
        device: device of the model.
        cache: folder of the workload's data, for workloads that cannot predict without it; by default the
            user's cache folder.
        precision: of the weights and of what is computed with them; None: fp32 weights, computed with in the
            precision of the training.
        load: False to load the weights when they are first used, for a process that only checks.
        sharded: load only this rank's share of the weights. Collective then, as is each prediction.

    Raises:
        InputError: there is no model, or its workload cannot predict.
    """
    if (Path(source) / PROVENANCE).is_file():
        if sharded:
            what = "is a published model, which each process loads as a whole"
            raise InputError("the model cannot be sharded", [Problem(source, what, "name its run")])
        predictor = _published(Path(source), device, cache, precision)
    else:
        run = open_run(source, which, cache, with_data=False)
        predictor = Predictor(
            run.recipe,
            run.workload,
            lambda: run.load(device, precision, sharded=sharded).model,
            path=run.path,
            identity=identity_of(run.path),
            step=run.step,
            device=device,
            precision=precision,
            sharded=sharded,
        )
    if load:
        _ = predictor.model
    return predictor


def _published(folder: Path, device: str, cache: Path | None, precision: Precision | None) -> Predictor:
    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.trainer.context import default_cache
    from trainfleet.training.workloads import ASSETS, inference_workload, make_workload
    from trainfleet.training.workloads.model_folder import dtype_of

    try:
        document = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
        recipe = Recipe.model_validate(document["recipe"])
        step, identity = int(document["checkpoint"]["step"]), str(document["checkpoint"]["identity"])
        listed = document.get(ASSETS)
        assets = None if listed is None else {name: read_asset(folder, name, listed[name]) for name in listed}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            "not a published model",
            [Problem(str(folder / PROVENANCE), "cannot be read", "publish the run again")],
        ) from error
    workload: Any = inference_workload(recipe, assets, folder)
    if workload is None:  # of an earlier version, or a workload without `for_inference`
        workload = make_workload(recipe, cache or default_cache())
    dtype = None if precision is None else dtype_of(precision)
    return Predictor(
        recipe,
        workload,
        lambda: workload.import_(folder).to(device=device, dtype=dtype).eval(),
        path=str(folder),
        identity=identity,
        step=step,
        device=device,
        precision=precision,
    )


def read_asset(folder: Path, name: str, sha256: str) -> bytes:
    """One of a published folder's assets.

    Raises:
        InputError: it is missing or was changed.
    """
    from trainfleet.training.workloads import ASSETS

    path = folder / ASSETS / name
    fix = "copy the whole published folder, or publish the run again"
    try:
        content = path.read_bytes()
    except OSError as error:
        problem = Problem(str(path), error.strerror or str(error), fix)
        raise InputError("the published model is not complete", [problem]) from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise InputError("the published model was changed", [Problem(str(path), "has other content", fix)])
    return content
