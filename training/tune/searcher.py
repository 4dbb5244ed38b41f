"""What Ray Tune is given of a search: what to try next, and who writes down what came of it.

Used by `trainfleet.training.tune.trials` in the process that drives Ray. Easy to get wrong: Ray pickles both
now and then to be able to restore them;
here trials.json does that, so they leave their contents out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.tune import Callback
from ray.tune.search import Searcher

from trainfleet.training.runs.reader import read_run
from trainfleet.training.tune.search import Search, Trial


class Proposals(Searcher):
    """First the trials that were left unfinished, then what the search proposes."""

    def __init__(self, search: Search) -> None:
        super().__init__(metric="value", mode=search.tune.mode)
        self._search, self._left = search, search.unfinished()

    def suggest(self, trial_id: str) -> Any:  # noqa: ARG002 - Ray's
        """The next trial's configuration."""
        search = self._search
        trial = self._left.pop(0) if self._left else search.propose()
        if trial is None:
            return self.FINISHED
        recipe, _ = search.recipe_of(trial.values, trial.number)
        assert recipe is not None
        run_dir = str(search.trial_folder(trial.number).absolute())
        return {
            "number": trial.number,
            "recipe": recipe.model_dump(mode="json"),
            "run_dir": run_dir,
            "metric": search.tune.metric,
        }

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing: the search hears of it by `Notes`."""

    def save(self, checkpoint_path: str) -> None:
        """A mark only: the search keeps itself."""
        Path(checkpoint_path).write_text("see trials.json", encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: the search keeps itself."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Notes(Callback):
    """Writes down what each trial does, and tells of it."""

    def __init__(self, search: Search, send: Callable[..., Any]) -> None:
        self._search, self._send, self._began = search, send, time.monotonic()

    def on_trial_result(
        self,
        iteration: int,  # noqa: ARG002 - the signature of Ray Tune
        trials: list[Any],  # noqa: ARG002 - the signature of Ray Tune
        trial: Any,
        result: dict[str, Any],
        **info: Any,  # noqa: ARG002 - Ray's
    ) -> None:
        """A validation."""
        found = self._of(trial)
        if "value" in result and all(step < result["step"] for step, _ in found.rows):
            found.rows.append((int(result["step"]), float(result["value"])))
            self._tell(found)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:  # noqa: ARG002 - Ray's
        """The trial came to its end, or was ended by the scheduler."""
        found = self._of(trial)
        found.status = (
            "finished"
            if read_run(self._search.trial_folder(found.number)).get("status") == "finished"
            else "stopped"
        )
        self._tell(found)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:  # noqa: ARG002 - Ray's
        """The trial broke."""
        found = self._of(trial)
        said = str(read_run(self._search.trial_folder(found.number)).get("error") or "")
        lines = str(trial.get_error() or "it broke").strip().splitlines()
        found.status, found.error = "failed", said or lines[-1]
        self._tell(found)

    def _of(self, trial: Any) -> Trial:
        number: int = trial.config["number"]
        return self._search.trials[number]

    def _tell(self, trial: Trial) -> None:
        search = self._search
        search.save()
        fields = {
            "number": trial.number,
            "status": trial.status,
            "values": trial.values,
            "best": trial.best(search.tune.mode),
            "error": trial.error,
        }
        self._send(
            "trial",
            **fields,
            done=search.done(),
            total=search.tune.trials,
            seconds=time.monotonic() - self._began,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {}
