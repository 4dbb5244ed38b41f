"""A search's memory and judgement, without Ray and torch: which trials there were, what to try next, which
was best.

Used by `trainfleet.training.tune.trials`. Everything that is known stands in trials.json, written whole after
each change, so that a killed search goes
on by the same command. Easy to get wrong: a combination may break a rule between keys although each value is
right by itself.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.recipe.schema_tuning import Space, TuneConfig
from trainfleet.training.recipe.validation import INDIVISIBLE, check

TRIALS = "trials.json"
MOST_REFUSED = 200
"""Proposals in a row that break the recipe's rules, after which the space is given up."""
Status = Literal["running", "finished", "stopped", "failed"]
FREE = ("trials", "concurrent")
"""Of `tune`, what may change when a search goes on."""


@dataclass
class Trial:
    """One recipe that is tried.

    Attributes:
        values: by key of the recipe.
        rows: (step, metric) of each validation so far.
        status: `stopped` early by the scheduler; `failed` with `error`.
    """

    number: int
    values: dict[str, Any]
    status: Status = "running"
    rows: list[tuple[int, float]] = field(default_factory=list)
    error: str = ""

    def best(self, mode: str) -> tuple[int, float] | None:
        """The step and value of its best validation."""
        sound = [row for row in self.rows if math.isfinite(row[1])]
        return (min if mode == "min" else max)(sound, key=lambda row: row[1]) if sound else None


class Search:
    """The trials of one search.

    Raises:
        InputError: the folder holds another search.
    """

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        if recipe.tune is None:
            raise InputError(
                "the recipe says nothing about a search",
                [Problem("tune", "is missing", "tune: {space: {optimizer.lr: {log_uniform: [1e-4, 1e-2]}}}")],
            )
        self.recipe, self.tune, self.folder = recipe, recipe.tune, folder
        self.trials: list[Trial] = []
        self._asked: dict[str, Any] = _comparable(recipe)
        if (folder / TRIALS).is_file():
            document = json.loads((folder / TRIALS).read_text(encoding="utf-8"))
            changed = [key for key, value in self._asked.items() if document["recipe"].get(key) != value]
            if changed:
                problems = [
                    Problem(key, "is not what the search was started with", "put it back, or --fresh")
                    for key in changed
                ]
                raise InputError(f"{folder} holds another search", problems)
            self.trials = [
                Trial(**{**each, "rows": [tuple(row) for row in each["rows"]]}) for each in document["trials"]
            ]

    def save(self) -> None:
        """Write what is known, whole."""
        write_whole(
            self.folder / TRIALS,
            json.dumps({"recipe": self._asked, "trials": [asdict(each) for each in self.trials]}, indent=1),
        )

    def unfinished(self) -> list[Trial]:
        """Trials that were going on when the search ended."""
        return [each for each in self.trials if each.status == "running"]

    def done(self) -> int:
        """How many trials came to an end."""
        return len(self.trials) - len(self.unfinished())

    def propose(self) -> Trial | None:
        """The next trial, noted; None when there were enough.

        Raises:
            InputError: the space hardly holds a combination that the recipe's rules allow.
        """
        if len(self.trials) >= self.tune.trials:
            return None
        for attempt in range(MOST_REFUSED):
            number = len(self.trials)
            values = self._sample(number, attempt)
            recipe, mistakes = self.recipe_of(values, number)
            if recipe is not None and not mistakes:
                self.trials.append(Trial(number, values))
                self.save()
                return self.trials[-1]
        raise InputError("the space holds no recipe that is right", [problem for _, problem in mistakes])

    def recipe_of(self, values: Mapping[str, Any], number: int) -> tuple[Recipe | None, list[Any]]:
        """The recipe of a trial, and what is wrong with it."""
        document = self.recipe.model_dump(mode="json") | {
            "tune": None,
            "name": f"trial-{number:04}",
            "storage": str(self.folder / "trials"),
        }
        put(document, values)
        return check(document)

    def trial_folder(self, number: int) -> Path:
        """Where a trial's run is kept."""
        return self.folder / "trials" / f"trial-{number:04}"

    def best(self) -> Trial | None:
        """The trial whose best validation is best; None where there is none yet."""
        judged = [each for each in self.trials if each.best(self.tune.mode) is not None]
        return min(judged, key=self._rank) if judged else None

    def best_recipe(self, name: str) -> dict[str, Any] | None:
        """The best trial's recipe as a document, to be trained under `name`."""
        best = self.best()
        if best is None:
            return None
        document = self.recipe.model_dump(mode="json") | {"name": name}
        del document["tune"]
        put(document, best.values)
        return document

    def table(self) -> list[Trial]:
        """All trials, the best first, those without a figure last."""
        return sorted(self.trials, key=self._rank)

    def _rank(self, trial: Trial) -> tuple[bool, float, int]:
        best = trial.best(self.tune.mode)
        value = math.inf if best is None else best[1]
        return best is None, value if self.tune.mode == "min" else -value, trial.number

    def _sample(self, number: int, attempt: int) -> dict[str, Any]:
        """The values of a trial: by chance from seed and number alone, or where Optuna expects the most from
        what is known.
        """
        if self.tune.sampler == "random":
            return {
                key: _drawn(space, random.Random(f"{self.tune.seed}:{number}:{attempt}:{key}"))
                for key, space in self.tune.space.items()
            }
        return _by_optuna(self, number, attempt)


def put(document: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Give keys such as `optimizer.lr` their values."""
    for key, value in values.items():
        *groups, last = key.split(".")
        place = document
        for group in groups:
            inner = place.get(group)
            place[group] = place = dict(inner) if isinstance(inner, dict) else {}
        place[last] = value


def check_space(recipe: Recipe) -> None:
    """See that every key of the space is one of the recipe, and that each value is right by itself.

    Raises:
        InputError: all that is wrong, at once.
    """
    assert recipe.tune is not None
    problems: list[Problem] = []
    for key, space in recipe.tune.space.items():
        where = f"tune.space.{key}"
        if key.split(".")[0] in ("tune", "name", "storage"):
            problems.append(Problem(where, "belongs to the search itself", "a key that changes the training"))
            continue
        seen: set[str] = set()
        for value in space.ends():
            document = recipe.model_dump(mode="json") | {"tune": None}
            put(document, {key: value})
            own = tuple(key.split("."))
            for keys, problem in check(document)[1]:
                about = keys[: len(own)] == own or own[: len(keys)] == keys
                if (
                    about and INDIVISIBLE not in problem.what and str(problem) not in seen
                ):  # a rule that another choice may satisfy
                    seen.add(str(problem))
                    problems.append(Problem(f"{where} = {value}", problem.what, problem.fix))
    if problems:
        raise InputError(
            f"{len(problems)} mistake{'s' if len(problems) != 1 else ''} in the search", problems
        )


def _comparable(recipe: Recipe) -> dict[str, Any]:
    document = recipe.model_dump(mode="json")
    flat = {f"tune.{key}": value for key, value in document.pop("tune").items() if key not in FREE}
    for key in ("scaling", "log", "storage", "publish", "name"):
        document.pop(key)
    return document | flat


def _drawn(space: Space, chance: random.Random) -> Any:
    if space.choice is not None:
        return chance.choice(space.choice)
    if space.integer is not None:
        return chance.randint(*space.integer)
    if space.uniform is not None:
        return chance.uniform(*space.uniform)
    low, high = space.log_uniform or (1.0, 1.0)
    return math.exp(chance.uniform(math.log(low), math.log(high)))


def _by_optuna(search: Search, number: int, attempt: int) -> dict[str, Any]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    tune: TuneConfig = search.tune
    sampler = optuna.samplers.TPESampler(
        seed=tune.seed + 7919 * number + attempt,
        n_startup_trials=min(10, max(3, tune.trials // 3)),
        constant_liar=tune.concurrent > 1,
    )
    study = optuna.create_study(direction="minimize" if tune.mode == "min" else "maximize", sampler=sampler)
    distributions = dict(_distributions(tune))
    for trial in search.trials:
        best = trial.best(tune.mode)
        params = {key: _coded(tune.space[key], value) for key, value in trial.values.items()}
        if best is not None and trial.status != "running":
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=distributions, value=best[1])
            )
        elif trial.status == "failed":
            study.add_trial(
                optuna.trial.create_trial(
                    params=params, distributions=distributions, state=optuna.trial.TrialState.FAIL
                )
            )
    asked = study.ask(distributions)
    return {key: _decoded(space, asked.params[key]) for key, space in tune.space.items()}


def _distributions(tune: TuneConfig) -> Iterator[tuple[str, Any]]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    for key, space in tune.space.items():
        if space.choice is not None:
            yield key, CategoricalDistribution([json.dumps(each) for each in space.choice])
        elif space.integer is not None:
            yield key, IntDistribution(*space.integer)
        else:
            low, high = space.uniform or space.log_uniform or (0.0, 1.0)
            yield key, FloatDistribution(low, high, log=space.log_uniform is not None)


def _coded(space: Space, value: Any) -> Any:
    """Optuna's choices are plain values, a recipe's may be lists."""
    return json.dumps(value) if space.choice is not None else value


def _decoded(space: Space, value: Any) -> Any:
    return json.loads(value) if space.choice is not None else value
