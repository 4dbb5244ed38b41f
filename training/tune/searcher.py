"""Ray Tune's view of a search: a searcher that proposes trials, and a callback that records their results.

Ray pickles both to restore them. trials.json already holds the state, so they pickle without contents.
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


class TrialSearcher(Searcher):
    """Proposes unfinished trials first, then new ones."""

    def __init__(self, search: Search) -> None:
        super().__init__(metric="value", mode=search.tune.mode)
        self._search, self._unfinished = search, search.unfinished()

    def suggest(self, trial_id: str) -> Any:  # noqa: ARG002 - Ray's
        """The next trial's configuration."""
        search = self._search
        trial = self._unfinished.pop(0) if self._unfinished else search.propose()
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
        """No-op: `TrialRecorder` records it."""

    def save(self, checkpoint_path: str) -> None:
        """Write a marker; trials.json holds the state."""
        Path(checkpoint_path).write_text("see trials.json", encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """No-op: trials.json holds the state."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class TrialRecorder(Callback):
    """Records each trial's results and sends an event for each."""

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
        """Record a validation."""
        found = self._of(trial)
        if "value" in result and all(step < result["step"] for step, _ in found.rows):
            found.rows.append((int(result["step"]), float(result["value"])))
            self._record(found)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:  # noqa: ARG002 - Ray's
        """Record that the trial finished or was stopped by the scheduler."""
        found = self._of(trial)
        found.status = (
            "finished"
            if read_run(self._search.trial_folder(found.number)).get("status") == "finished"
            else "stopped"
        )
        self._record(found)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:  # noqa: ARG002 - Ray's
        """Record a failed trial."""
        found = self._of(trial)
        recorded = str(read_run(self._search.trial_folder(found.number)).get("error") or "")
        lines = str(trial.get_error() or "the trial failed").strip().splitlines()
        found.status, found.error = "failed", recorded or lines[-1]
        self._record(found)

    def _of(self, trial: Any) -> Trial:
        number: int = trial.config["number"]
        return self._search.trials[number]

    def _record(self, trial: Trial) -> None:
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
