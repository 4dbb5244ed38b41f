"""State of a search, without torch: past trials, the next proposal, and the best trial.

trials.json holds the whole state and is rewritten after each change, so that a killed search resumes, also on
another machine if it is stored below a URL.
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
from trainfleet.training.recipe.changes import differences
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.recipe.schema_tuning import Space, TuneConfig
from trainfleet.training.recipe.validation import INDIVISIBLE, check
from trainfleet.training.runs.storage import retry_policy
from trainfleet.training.stores import NotFoundError, Store, is_remote, open_store

TRIALS = "trials.json"
RUNS = "trials"
"""The folder of the trials' runs, below the search's."""
LONGEST_NAME = 52
"""Characters of a search's name: those of its trials' runs end with `-trial-0000`."""
MAX_REJECTED = 200
"""Consecutive invalid proposals after which the search fails. Each value may be valid by itself and the
combination still break a rule between keys.
"""
Status = Literal["running", "finished", "pruned", "failed"]
CHANGEABLE = ("trials", "concurrent", "retries")
"""Keys of `tune` that may change when a search resumes."""


@dataclass
class Trial:
    """One trial of a search.

    Attributes:
        values: by recipe key.
        rows: (step, metric) of each validation so far.
        status: `pruned` means ended early by the scheduler; `failed` has an `error`.
        error: why it failed last.
        run: the name of its run.
        failures: how often its run failed.
        stopping: whether it is to be pruned, and its run may still have to be stopped.
    """

    number: int
    values: dict[str, Any]
    status: Status = "running"
    rows: list[tuple[int, float]] = field(default_factory=list)
    error: str = ""
    run: str = ""
    failures: int = 0
    stopping: bool = False

    def best(self, mode: str) -> tuple[int, float] | None:
        """The step and value of its best validation."""
        finite = [row for row in self.rows if math.isfinite(row[1])]
        return (min if mode == "min" else max)(finite, key=lambda row: row[1]) if finite else None


class Search:
    """The trials of one search.

    Raises:
        InputError: the folder holds another search.
    """

    def __init__(self, recipe: Recipe, home: str | Path) -> None:
        """`home` is the folder or URL of the search."""
        if recipe.tune is None:
            raise InputError(
                "the recipe configures no search",
                [Problem("tune", "is missing", "tune: {space: {optimizer.lr: {log_uniform: [1e-4, 1e-2]}}}")],
            )
        self.recipe, self.tune, self.home = recipe, recipe.tune, str(home)
        self.store: Store = open_store(self.home, retry_policy(recipe))
        self.trials: list[Trial] = []
        self._identity: dict[str, Any] = _comparable(recipe)
        try:
            document = json.loads(self.store.read(TRIALS))
        except NotFoundError:
            return
        if changed := _changed(document["recipe"], self._identity):
            problems = [
                Problem(key, "differs from the start of the search", "restore it, or use --fresh")
                for key in changed
            ]
            raise InputError(f"{home} holds another search", problems)
        self.trials = [_trial(each) for each in document["trials"]]

    def save(self) -> None:
        """Write the state atomically.

        Raises:
            StoreError: all attempts failed.
        """
        state = {"recipe": self._identity, "trials": [asdict(each) for each in self.trials]}
        self.store.put(TRIALS, json.dumps(state, indent=1).encode())

    def unfinished(self) -> list[Trial]:
        """Trials that were running when the search ended."""
        return [each for each in self.trials if each.status == "running"]

    def done(self) -> int:
        """Number of ended trials."""
        return len(self.trials) - len(self.unfinished())

    def propose(self) -> Trial | None:
        """Add the next trial; None if all trials exist.

        Raises:
            InputError: the space has (almost) no valid combination.
        """
        if len(self.trials) >= self.tune.trials:
            return None
        for attempt in range(MAX_REJECTED):
            number = len(self.trials)
            values = self._sample(number, attempt)
            run = run_name(self.recipe.name, number)
            recipe, mistakes = self.recipe_of(values, run)
            if recipe is not None and not mistakes:
                self.trials.append(Trial(number, values, run=run))
                self.save()
                return self.trials[-1]
        raise InputError("the space contains no valid recipe", [problem for _, problem in mistakes])

    def recipe_of(self, values: Mapping[str, Any], run: str) -> tuple[Recipe | None, list[Any]]:
        """The recipe of a trial with this run, and its mistakes."""
        changes = {"tune": None, "name": run, "storage": self.runs}
        document = self.recipe.model_dump(mode="json") | changes
        set_keys(document, values)
        return check(document)

    @property
    def runs(self) -> str:
        """The folder or URL of the trials' runs."""
        return self.store.at(RUNS)

    def trial_home(self, trial: Trial) -> str:
        """The folder or URL of a trial's run."""
        return f"{self.runs}/{trial.run}"

    def best(self) -> Trial | None:
        """The trial with the best validation; None if there is none yet."""
        measured = [each for each in self.trials if each.best(self.tune.mode) is not None]
        return min(measured, key=self._rank) if measured else None

    def best_recipe(self, name: str) -> dict[str, Any] | None:
        """The best trial's recipe as a document with the given name."""
        best = self.best()
        if best is None:
            return None
        document = self.recipe.model_dump(mode="json") | {"name": name}
        del document["tune"]
        set_keys(document, best.values)
        return document

    def table(self) -> list[Trial]:
        """All trials, best first, those without a result last."""
        return sorted(self.trials, key=self._rank)

    def _rank(self, trial: Trial) -> tuple[bool, float, int]:
        best = trial.best(self.tune.mode)
        value = math.inf if best is None else best[1]
        return best is None, value if self.tune.mode == "min" else -value, trial.number

    def _sample(self, number: int, attempt: int) -> dict[str, Any]:
        """The values of a trial: random from seed and number alone, or proposed by Optuna."""
        if self.tune.sampler == "random":
            return {
                key: _random_value(space, random.Random(f"{self.tune.seed}:{number}:{attempt}:{key}"))
                for key, space in self.tune.space.items()
            }
        return _by_optuna(self, number, attempt)


def run_name(search: str, number: int) -> str:
    """The name of a trial's run. Clusters know runs by their names, so it has the search's."""
    return f"{search}-trial-{number:04}"


def home_of(recipe: Recipe) -> str:
    """Folder or URL of a search: STORAGE/NAME-tune.

    Raises:
        InputError: the name is too long for those of its trials.
    """
    if len(recipe.name) > LONGEST_NAME:
        what = f"has {len(recipe.name)} characters, a search's name at most {LONGEST_NAME}"
        raise InputError("the search's name is too long", [Problem("name", what, "--run NAME")])
    return f"{recipe.home_url() if is_remote(recipe.storage) else recipe.run_dir().absolute()}-tune"


def set_keys(document: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set dotted keys such as `optimizer.lr` in a document."""
    for key, value in values.items():
        *groups, last = key.split(".")
        place = document
        for group in groups:
            inner = place.get(group)
            place[group] = place = dict(inner) if isinstance(inner, dict) else {}
        place[last] = value


def check_space(recipe: Recipe) -> None:
    """Require that every key of the space exists in the recipe and that each value is valid by itself.

    Raises:
        InputError: names all mistakes.
    """
    assert recipe.tune is not None
    problems: list[Problem] = []
    for key, space in recipe.tune.space.items():
        where = f"tune.space.{key}"
        if key.split(".")[0] in ("tune", "name", "storage"):
            problems.append(
                Problem(where, "belongs to the search itself", "use a key that changes the training")
            )
            continue
        seen: set[str] = set()
        for value in space.ends():
            document = recipe.model_dump(mode="json") | {"tune": None}
            set_keys(document, {key: value})
            own = tuple(key.split("."))
            for keys, problem in check(document)[1]:
                about = keys[: len(own)] == own or own[: len(keys)] == keys
                # INDIVISIBLE: a rule that another choice may satisfy
                if about and INDIVISIBLE not in problem.what and str(problem) not in seen:
                    seen.add(str(problem))
                    problems.append(Problem(f"{where} = {value}", problem.what, problem.fix))
    if problems:
        raise InputError(
            f"{len(problems)} mistake{'s' if len(problems) != 1 else ''} in the search", problems
        )


def _comparable(recipe: Recipe) -> dict[str, Any]:
    document = recipe.model_dump(mode="json")
    flat = {f"tune.{key}": value for key, value in document.pop("tune").items() if key not in CHANGEABLE}
    for key in ("scaling", "log", "storage", "publish", "name"):
        document.pop(key)
    return document | flat


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys whose difference makes another search. A key that a resumed run may change makes none."""
    own = [key for key, value in now.items() if key.startswith("tune.") and before.get(key) != value]
    return [*own, *(key for key, _, _ in differences(before, now))]


def _trial(stored: Mapping[str, Any]) -> Trial:
    """A trial of trials.json. Those before 0.2 had runs named by their numbers alone, and `stopped` ones."""
    known = {"run": f"trial-{stored['number']:04}", **stored, "rows": [tuple(row) for row in stored["rows"]]}
    return Trial(**{**known, "status": "pruned" if stored["status"] == "stopped" else stored["status"]})


def _random_value(space: Space, chance: random.Random) -> Any:
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
    proposed = study.ask(distributions)
    return {key: _decoded(space, proposed.params[key]) for key, space in tune.space.items()}


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
    """Encode choices: Optuna's are plain values, a recipe's may be lists."""
    return json.dumps(value) if space.choice is not None else value


def _decoded(space: Space, value: Any) -> Any:
    return json.loads(value) if space.choice is not None else value
