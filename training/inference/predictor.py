"""A trained model that answers rows as a user has them: from a run, a checkpoint or a published folder.

Used by predict and serve, and by whoever loads a publication. Easy to get wrong: one row that cannot be read
must not take the
others of its batch with it, so then each row is read by itself.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.suggestions import did_you_mean
from trainfleet.training.inference.loaded import identity_of, open_trained, precision

if TYPE_CHECKING:
    import torch

    from trainfleet.training.recipe.schema import Recipe

Row = Mapping[str, Any]
PROVENANCE = "provenance.json"


@dataclass(frozen=True)
class Answer:
    """A row's prediction, or why there is none."""

    prediction: dict[str, Any] | None
    error: str = ""


class Predictor:
    """A model, ready to answer.

    Attributes:
        path: the checkpoint or folder it was read from.
        identity: SHA-256 that changes with its weights.
        step: optimizer steps behind it.
    """

    def __init__(
        self,
        recipe: Recipe,
        workload: Any,
        model: torch.nn.Module,
        *,
        path: str,
        identity: str,
        step: int,
        device: str,
    ) -> None:
        self.recipe, self.workload, self.model = recipe, workload, model
        self.path, self.identity, self.step, self.device = path, identity, step, device
        missing = [name for name in ("read", "predict") if not hasattr(workload, name)]
        if missing:
            what = f"has no {' and no '.join(f'`{name}`' for name in missing)}"
            raise InputError(
                "this workload's models cannot predict",
                [Problem(recipe.workload.name, what, "see docs/add-a-workload.md")],
            )

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse settings that the workload's `predict` does not take.

        Raises:
            InputError: each unknown setting.
        """
        known = getattr(self.workload, "predict_settings", None)
        if known is None:
            parameters = inspect.signature(self.workload.predict).parameters.values()
            if any(each.kind is each.VAR_KEYWORD for each in parameters):
                return
            known = [each.name for each in parameters if each.name not in ("model", "batch")]
        problems = [
            Problem(
                f"--set {name}",
                f"`{name}` is no setting of this workload's predictions",
                did_you_mean(name, known),
            )
            for name in settings
            if name not in known
        ]
        if problems:
            raise InputError("unknown settings", problems)

    def __call__(self, rows: Sequence[Row], **settings: Any) -> list[dict[str, Any]]:
        """One prediction per row.

        Raises:
            InputError: every row that cannot be read, by its number.
        """
        import torch

        batch = {name: value.to(self.device) for name, value in self.workload.read(rows).items()}
        with torch.no_grad(), precision(self.recipe, self.device):
            found = list(self.workload.predict(self.model, batch, **settings))
        if len(found) != len(rows):
            what = f"gave {len(found)} predictions for {len(rows)} rows"
            raise TrainfleetError(
                "the workload's `predict` lost count",
                [Problem(self.recipe.workload.name, what, "one for each row, in their order")],
            )
        return found

    def answers(self, rows: Sequence[Row], **settings: Any) -> list[Answer]:
        """One answer per row; a row that cannot be read is answered with the reason."""
        if not rows:
            return []
        try:
            return [Answer(each) for each in self(rows, **settings)]
        except InputError as error:
            if len(rows) == 1:
                return [Answer(None, "; ".join(f"{each.what}" for each in error.problems) or error.summary)]
        told: list[str] = [self._wrong(row) for row in rows]
        good = [row for row, wrong in zip(rows, told, strict=True) if not wrong]
        found = iter(self(good, **settings) if good else [])
        return [Answer(None, wrong) if wrong else Answer(next(found)) for wrong in told]

    def _wrong(self, row: Row) -> str:
        try:
            self.workload.read([row])
        except InputError as error:
            return "; ".join(f"{each.what}" for each in error.problems) or error.summary
        return ""


def open_predictor(
    source: str, which: str = "best", device: str = "cpu", cache: Path | None = None
) -> Predictor:
    """Open a model.

    Args:
        source: a run's folder or URL, one checkpoint's, or a folder that `trainfleet publish` wrote.
        which: `best`, `newest` or `step-N`, where `source` is a run.
        device: where the model goes.
        cache: where the workload's data lives; by default the user's cache folder.

    Raises:
        InputError: nothing there, or its workload cannot predict.
    """
    if (Path(source) / PROVENANCE).is_file():
        return _published(Path(source), device, cache)
    found = open_trained(source, which, device, cache)
    return Predictor(
        found.recipe,
        found.workload,
        found.model,
        path=found.path,
        identity=identity_of(found.path),
        step=found.step,
        device=device,
    )


def _published(folder: Path, device: str, cache: Path | None) -> Predictor:
    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.trainer.context import default_cache
    from trainfleet.training.workloads import make_workload

    try:
        document = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
        recipe = Recipe.model_validate(document["recipe"])
        step, identity = int(document["checkpoint"]["step"]), str(document["checkpoint"]["identity"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            "no publication", [Problem(str(folder / PROVENANCE), "cannot be read", "publish the run again")]
        ) from error
    workload: Any = make_workload(recipe, cache or default_cache())
    model = workload.import_(folder).to(device).eval()
    return Predictor(recipe, workload, model, path=str(folder), identity=identity, step=step, device=device)
