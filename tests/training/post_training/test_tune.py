"""Searches: the space is validated at once, values follow from the seed and from earlier trials, a search
resumes after a kill, and the best recipe is written.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.training.launches import running, wait_for
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.tune.page import write_page
from trainfleet.training.tune.search import Search, check_space
from trainfleet.training.tune.trials import follow, tune

Command = Callable[..., subprocess.CompletedProcess[str]]
SPACE = {
    "optimizer.lr": {"log_uniform": [1e-4, 1e-2]},
    "batch.micro_batch": {"choice": [16, 32]},
    "optimizer.warmup": {"integer": [0, 5]},
}


def search_recipe(**tune: Any) -> Recipe:
    """A recipe of the image workload with a search."""
    tune_section = {"metric": "validation/accuracy", "mode": "max", "trials": 12, "space": SPACE, **tune}
    changes = [
        "scaling.workers=1",
        "steps=8",
        "optimizer.warmup=1",
        "validation.every=2",
        "checkpoint.every=2",
        "log.tensorboard=false",
    ]
    return load_recipe("vision-small", [*changes, f"tune={json.dumps(tune_section)}"])


def finish(search: Search, score: Callable[[dict[str, Any]], float]) -> None:
    """End every trial with the score of its values."""
    while (trial := search.propose()) is not None:
        trial.rows, trial.status = [(2, 0.0), (8, score(trial.values))], "finished"
        search.save()


def test_all_mistakes_in_a_space_are_reported_at_once() -> None:
    space = {
        "optimizer.lrr": {"choice": [1]},
        "optimizer.lr": {"uniform": [-1, 1]},
        "workload.model.kind": {"choice": ["cnn", "cn"]},
        "name": {"choice": ["a"]},
    }
    with pytest.raises(InputError) as caught:
        check_space(search_recipe(space=space))
    reported = {problem.where: str(problem) for problem in caught.value.problems}
    assert "did you mean `lr`?" in reported["tune.space.optimizer.lrr = 1"]
    assert "tune.space.optimizer.lr = -1.0" in reported
    assert "tune.space.workload.model.kind = cn" in reported
    assert "belongs to the search" in reported["tune.space.name"]
    assert len(reported) == 4
    check_space(search_recipe())


@pytest.mark.parametrize("sampler", ["random", "optuna"])
def test_values_are_in_the_space_and_follow_from_the_seed(tmp_path: Path, sampler: str) -> None:
    drawn = []
    for name in ("one", "two"):
        search = Search(search_recipe(sampler=sampler), tmp_path / name)
        finish(search, lambda values: values["optimizer.lr"])
        drawn.append([trial.values for trial in search.trials])
    assert drawn[0] == drawn[1]
    assert len({values["optimizer.lr"] for values in drawn[0]}) == 12
    for values in drawn[0]:
        assert 1e-4 <= values["optimizer.lr"] <= 1e-2
        assert values["batch.micro_batch"] in (16, 32)
        assert values["optimizer.warmup"] in range(6)
    other = Search(search_recipe(sampler=sampler, seed=1), tmp_path / "other")
    finish(other, lambda values: values["optimizer.lr"])
    assert [trial.values for trial in other.trials] != drawn[0]


def test_optuna_moves_towards_good_values(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"uniform": [0.0001, 1.0]}}
    best = {}
    for sampler in ("random", "optuna"):
        search = Search(search_recipe(sampler=sampler, space=space, trials=40), tmp_path / sampler)
        finish(search, lambda values: 1 - (values["optimizer.lr"] - 0.37) ** 2)
        late = [abs(trial.values["optimizer.lr"] - 0.37) for trial in search.trials[20:]]
        best[sampler] = sum(late) / len(late)
    assert best["optuna"] < best["random"] / 2


def test_combinations_that_violate_a_rule_between_keys_are_not_tried(tmp_path: Path) -> None:
    search = Search(
        search_recipe(
            sampler="random",
            space={"batch.micro_batch": {"choice": [16, 24, 32]}, "batch.global_batch": {"choice": [64, 48]}},
        ),
        tmp_path,
    )
    finish(search, lambda _: 1.0)
    assert all(
        each.values["batch.global_batch"] % each.values["batch.micro_batch"] == 0 for each in search.trials
    )
    nothing = Search(
        search_recipe(sampler="random", space={"batch.micro_batch": {"choice": [23, 29]}}),
        tmp_path / "nothing",
    )
    with pytest.raises(InputError, match="contains no valid recipe"):
        nothing.propose()


def test_finished_trials_survive_a_restart_and_another_search_is_rejected(tmp_path: Path) -> None:
    search = Search(search_recipe(), tmp_path)
    first, second = search.propose(), search.propose()
    assert first is not None
    assert second is not None
    first.rows, first.status = [(2, 0.5)], "stopped"
    search.save()
    again = Search(search_recipe(trials=20, concurrent=2), tmp_path)  # the number of trials may grow
    assert again.trials == search.trials
    assert [each.number for each in again.unfinished()] == [1]
    with pytest.raises(InputError, match=r"tune\.seed"):
        Search(search_recipe(seed=9), tmp_path)
    with pytest.raises(InputError, match="optimizer"):
        Search(
            search_recipe().model_copy(
                update={"optimizer": search_recipe().optimizer.model_copy(update={"eps": 1e-3})}
            ),
            tmp_path,
        )


@pytest.mark.parametrize(("mode", "best_number"), [("max", 1), ("min", 0)])
def test_the_best_trial_has_the_best_validation_and_a_complete_recipe(
    tmp_path: Path, mode: str, best_number: int
) -> None:
    search = Search(search_recipe(mode=mode), tmp_path)
    for rows, status in (
        ([(2, 0.1), (4, 0.6)], "finished"),
        ([(2, 0.9), (4, 0.3)], "stopped"),
        ([(2, float("nan"))], "finished"),
        ([], "failed"),
    ):
        trial = search.propose()
        assert trial is not None
        trial.rows, trial.status = rows, status  # type: ignore[assignment]  # a literal in a tuple is a str
    best = search.best()
    assert best is not None
    assert best.number == best_number
    assert [each.number for each in search.table()][:2] == [best_number, 1 - best_number]
    document = search.best_recipe("better")
    assert document is not None
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(document))
    recipe = load_recipe(tmp_path / "best.yaml")
    assert (recipe.name, recipe.tune, recipe.optimizer.lr) == ("better", None, best.values["optimizer.lr"])
    write_page(search, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert f"Best: trial {best_number} of 4" in page
    assert all(f"against {key}" in page for key in SPACE)
    assert 'src="http' not in page


def test_a_trial_reports_each_validation_once_after_a_resume_too(tmp_path: Path) -> None:
    def write(*steps: int) -> None:
        rows = [{"kind": "validation", "step": step, "validation/loss": 1 / step} for step in steps]
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    write(2, 4)
    validations = list(follow(search_recipe(), tmp_path, "validation/loss", lambda: write(2, 4, 6)))
    assert validations == [(2, 0.5), (4, 0.25), (6, pytest.approx(1 / 6))]


def test_an_error_in_a_trial_is_raised_after_its_last_validation(tmp_path: Path) -> None:
    def train() -> None:
        (tmp_path / "metrics.jsonl").write_text(
            json.dumps({"kind": "validation", "step": 2, "validation/loss": 1.0}) + "\n"
        )
        raise TrainfleetError("the loss is NaN")

    rows = follow(search_recipe(), tmp_path, "validation/loss", train)
    assert next(rows) == (2, 1.0)
    with pytest.raises(TrainfleetError, match="is NaN"):
        next(rows)


def test_a_finished_search_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(search_recipe(trials=3), tmp_path)
    finish(search, lambda _: 0.5)
    monkeypatch.setattr(
        "trainfleet.training.runtime.subprocess_jobs.run",
        lambda *_, **__: pytest.fail("something was started"),
    )
    assert tune(search_recipe(trials=3), tmp_path, lambda _: None).trials == search.trials


def test_a_recipe_without_a_space_is_one_message(trainfleet: Command, tmp_path: Path) -> None:
    done = trainfleet("tune", "lm-tiny", "--storage", str(tmp_path))
    assert done.returncode == 2
    assert "log_uniform" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.launch
@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_ray_tune_resumes_after_a_kill_and_writes_the_best_recipe(
    trainfleet: Command, tmp_path: Path
) -> None:
    tune_section = {"metric": "validation/accuracy", "mode": "max", "trials": 3, "space": SPACE}
    changes = [
        "scaling.workers=1",
        "steps=12",
        "optimizer.warmup=1",
        "validation.every=2",
        "checkpoint.every=2",
        "log.tensorboard=false",
    ]
    arguments = [
        "tune",
        "vision-small",
        *changes,
        f"tune={json.dumps(tune_section)}",
        "--run",
        "digits",
        "--storage",
        str(tmp_path),
        "--json",
    ]
    command = [str(Path(sys.executable).with_name("trainfleet")), *arguments]
    first = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    notes = tmp_path / "digits-tune" / "trials.json"

    def first_trial_done() -> bool:
        assert first.poll() is None, first.communicate()
        return notes.is_file() and any(
            each["status"] != "running" for each in json.loads(notes.read_text())["trials"]
        )

    wait_for(first_trial_done, "no trial came to its end", 600)
    below = {child.pid for child in psutil.Process(first.pid).children(recursive=True)}
    first.send_signal(signal.SIGKILL)
    first.communicate()
    wait_for(lambda: not running(below), "processes were left behind", 60)
    before = json.loads(notes.read_text())["trials"]
    done = trainfleet(*arguments, timeout=600)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    after = {each["number"]: each for each in document["trials"]}
    assert sorted(after) == [0, 1, 2]
    for trial in before:
        assert after[trial["number"]]["values"] == trial["values"]
        if trial["status"] != "running":
            assert after[trial["number"]]["rows"] == trial["rows"]
    best = load_recipe(document["recipe"])
    assert best.optimizer.lr == document["best"]["values"]["optimizer.lr"]
    assert document["best"]["value"] == max(value for each in document["trials"] for _, value in each["rows"])


def test_the_command_writes_the_best_recipe_and_lists_all_trials(trainfleet: Command, tmp_path: Path) -> None:
    recipe = search_recipe(trials=3)
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    folder = tmp_path / "runs" / "vision-small-tune"
    search = Search(recipe, folder)
    finish(search, lambda values: values["optimizer.lr"])
    done = trainfleet("tune", "search.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    values = [each.values for each in search.trials]
    best = max(values, key=lambda each: each["optimizer.lr"])
    assert (document["best"]["values"], document["best"]["step"]) == (best, 8)
    assert [each["values"] for each in document["trials"]] == sorted(
        values, key=lambda each: -each["optimizer.lr"]
    )
    assert load_recipe(folder / "best.yaml").optimizer.lr == best["optimizer.lr"]
    assert "Progress of the trials" in (folder / "report.html").read_text()
    shown = trainfleet("tune", "search.yaml", cwd=tmp_path)
    assert "best.yaml" in shown.stdout
    again = trainfleet("tune", "search.yaml", "tune.seed=7", cwd=tmp_path)
    assert again.returncode == 2
    assert "another search" in again.stderr
