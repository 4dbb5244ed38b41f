"""Decides which trials end early, with Optuna's pruners. Resources are counted in validations.

Nothing of it is stored: the decisions follow from the rows of the trials, which a resumed search repeats.
"""

from __future__ import annotations

from typing import Any

from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.tune.search import Search, Trial


class Pruning:
    """The early stopping of one search. Without a scheduler it ends no trial, and needs no Optuna."""

    def __init__(self, search: Search) -> None:
        self._mode = search.tune.mode
        self._longest = validations(search.recipe)
        self._study = _study(search) if search.tune.scheduler != "none" else None
        self._trials: list[Any] = []
        self._reported: list[int] = []
        for trial in search.trials:
            self.should_end(trial)
            if trial.status != "running":
                self.ended(trial)

    def should_end(self, trial: Trial) -> bool:
        """Whether the trial ends early; takes the rows that were added since the last call. The last
        validation of a recipe ends no trial, because nothing would be saved.
        """
        if self._study is None:
            return False
        while len(self._trials) <= trial.number:
            self._trials.append(self._study.ask())
            self._reported.append(0)
        own, ends = self._trials[trial.number], False
        for count in range(self._reported[trial.number] + 1, len(trial.rows) + 1):
            own.report(trial.rows[count - 1][1], count)
            ends = own.should_prune() or ends
        self._reported[trial.number] = len(trial.rows)
        return ends and (self._longest is None or len(trial.rows) < self._longest)

    def ended(self, trial: Trial) -> None:
        """Take note of the end of a trial: `median` compares with those that finished."""
        if self._study is None or len(self._trials) <= trial.number:
            return
        from optuna.trial import TrialState

        own, best = self._trials[trial.number], trial.best(self._mode)
        if trial.status == "finished" and best is not None:
            self._study.tell(own, best[1])
        else:
            state = TrialState.PRUNED if trial.status == "pruned" else TrialState.FAIL
            self._study.tell(own, state=state)


def validations(recipe: Recipe) -> int | None:
    """Validations of a whole run; None if its steps follow from its data."""
    return None if recipe.steps is None else -(-recipe.steps // recipe.validation.every)


def _study(search: Search) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    tune, longest = search.tune, validations(search.recipe)
    grace = tune.grace if longest is None else min(tune.grace, longest)
    pruner: optuna.pruners.BasePruner
    match tune.scheduler:
        case "median":
            pruner = optuna.pruners.MedianPruner(n_warmup_steps=grace)
        case "hyperband":
            pruner = optuna.pruners.HyperbandPruner(
                min_resource=grace, max_resource=longest or "auto", reduction_factor=tune.reduction
            )
        case _:
            pruner = optuna.pruners.SuccessiveHalvingPruner(
                min_resource=grace, reduction_factor=tune.reduction
            )
    # Hyperband derives a trial's bracket from the name of the study and the number of the trial.
    return optuna.create_study(
        study_name="search",
        direction="minimize" if tune.mode == "min" else "maximize",
        sampler=optuna.samplers.RandomSampler(seed=0),
        pruner=pruner,
    )
