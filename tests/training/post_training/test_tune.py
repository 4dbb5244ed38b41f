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
from trainfleet.errors import InputError
from trainfleet.training.launch.request import Request
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.stores import StoreError
from trainfleet.training.tune import metrics
from trainfleet.training.tune.page import write_page
from trainfleet.training.tune.pruning import Pruning
from trainfleet.training.tune.search import Search, Trial, check_space, home_of
from trainfleet.training.tune.trial_launch import trial_request

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
    first.rows, first.status = [(2, 0.5)], "pruned"
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
        ([(2, 0.9), (4, 0.3)], "pruned"),
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


def pruned(search: Search, *losses: list[float]) -> list[int]:
    """The validations after which each trial ends, trained one after the other; 0: it does not end early."""
    pruning, ends = Pruning(search), []
    for each in losses:
        trial = search.propose()
        assert trial is not None
        ends.append(0)
        for count, loss in enumerate(each, 1):
            trial.rows.append((2 * count, loss))
            if pruning.should_end(trial):
                ends[-1] = count
                break
        trial.status = "pruned" if ends[-1] else "finished"
        pruning.ended(trial)
    return ends


@pytest.mark.parametrize(
    ("scheduler", "ends"),
    [("asha", [0, 0, 1, 2, 1]), ("none", [0] * 5), ("median", [0] * 5)],
)
def test_poor_trials_end_at_the_rungs_of_the_scheduler(
    tmp_path: Path, scheduler: str, ends: list[int]
) -> None:
    search = Search(search_recipe(mode="min", scheduler=scheduler, reduction=2, sampler="random"), tmp_path)
    losses: list[list[float]] = [[5, 3, 3, 3], [4, 2, 2, 2], [4.5, 1, 1, 1], [3, 2.5, 2.5, 2.5], [9] * 4]
    assert pruned(search, *losses) == ends


def test_the_median_of_finished_trials_ends_worse_ones_after_the_grace(tmp_path: Path) -> None:
    search = Search(search_recipe(mode="max", scheduler="median", grace=2, sampler="random"), tmp_path)
    finished = [[0.1 * number, 0.2 * number, 0.3 * number, 0.4 * number] for number in range(1, 6)]
    assert pruned(search, *finished, [0.1, 0.1, 0.1, 0.1], [0.5, 0.9, 0.9, 0.9]) == [0] * 5 + [2, 0]


def test_hyperband_gives_some_trials_a_later_first_rung(tmp_path: Path) -> None:
    search = Search(search_recipe(mode="min", scheduler="hyperband", reduction=2, sampler="random"), tmp_path)
    ends = pruned(search, *([number + 1.0] * 4 for number in range(12)))
    assert {1, 2} <= set(ends), "of trials that become worse and worse"
    assert 4 not in ends, "the last validation ends no trial"


@pytest.mark.parametrize("scheduler", ["asha", "hyperband"])
def test_a_resumed_search_decides_as_if_it_had_not_been_killed(tmp_path: Path, scheduler: str) -> None:
    recipe = search_recipe(mode="min", scheduler=scheduler, reduction=2, sampler="random")
    losses = [[float(7 * number % 5), *[float(5 * number % 3)] * 3] for number in range(12)]
    whole = pruned(Search(recipe, tmp_path / "whole"), *losses)
    search = Search(recipe, tmp_path / "killed")
    ends = pruned(search, *losses[:6])
    search.save()
    assert ends + pruned(Search(recipe, tmp_path / "killed"), *losses[6:]) == whole
    assert len(set(whole)) > 1


def test_a_trial_is_launched_with_its_values_alone(tmp_path: Path) -> None:
    search = Search(search_recipe(), tmp_path)
    values = {"optimizer.lr": 1e-05, "batch.micro_batch": 16, "log.every": 3}
    request = Request("vision-small", overrides=("steps=40", "scaling.workers=1"), on="torchrun")
    found = trial_request(search, request, Trial(7, values, run="a-trial-0007"))
    assert (found.run, found.storage, found.on) == ("a-trial-0007", f"{tmp_path}/trials", "torchrun")
    recipe = load_recipe("vision-small", found.overrides)
    assert (recipe.tune, recipe.optimizer.lr, recipe.batch.micro_batch, recipe.log.every) == (
        None,
        1e-05,
        16,
        3,
    )


def test_a_search_resumes_with_what_a_resumed_run_may_change(tmp_path: Path) -> None:
    Search(search_recipe(), tmp_path).save()
    document = search_recipe().model_dump(mode="json")
    document |= {"limits": {"max_hours": 2.0}, "data_loading": {"workers": 1}, "strategy": "fsdp"}
    document["notifications"] |= {"webhook": "HOOK"}
    document["checkpoint"] |= {"keep_last": 9}
    Search(Recipe.model_validate(document), tmp_path).save()
    document["checkpoint"] |= {"every": 4}
    document["seed"] = 7
    with pytest.raises(InputError) as caught:
        Search(Recipe.model_validate(document), tmp_path)
    assert [problem.where for problem in caught.value.problems] == ["checkpoint.every", "seed"]


def test_trials_of_the_first_release_keep_their_runs(tmp_path: Path) -> None:
    search = Search(search_recipe(), tmp_path)
    search.propose()
    search.propose()
    search.save()
    file = tmp_path / "trials.json"
    document = json.loads(file.read_text())
    known = ("number", "values", "status", "rows", "error")
    document["trials"] = [{key: each[key] for key in known} for each in document["trials"]]
    document["trials"][0]["status"] = "stopped"
    file.write_text(json.dumps(document))
    first, second = Search(search_recipe(), tmp_path).trials
    assert (first.status, second.status) == ("pruned", "running")
    assert search.trial_home(second) == f"{tmp_path}/trials/trial-0001"


def test_a_name_that_is_too_long_for_its_trials_is_rejected() -> None:
    recipe = search_recipe().model_copy(update={"name": "a" * 53})
    with pytest.raises(InputError, match="name is too long"):
        home_of(recipe)


def test_a_recipe_without_a_space_is_one_message(trainfleet: Command, tmp_path: Path) -> None:
    done = trainfleet("tune", "lm-tiny", "--storage", str(tmp_path))
    assert done.returncode == 2
    assert "log_uniform" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.launch
@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_a_search_resumes_after_a_kill_and_writes_the_best_recipe(
    trainfleet: Command, tmp_path: Path
) -> None:
    tune_section = {
        "metric": "validation/accuracy",
        "mode": "max",
        "trials": 3,
        "reduction": 2,
        "space": SPACE,
    }
    # Two workers: poor trials of several workers end early too.
    changes = ["scaling.workers=2", "steps=12", "optimizer.warmup=1", "validation.every=2"]
    changes += ["checkpoint.every=2", "log.tensorboard=false", f"tune={json.dumps(tune_section)}"]
    place = ["--on", "torchrun", "--run", "digits", "--storage", str(tmp_path), "--json"]
    arguments = ["tune", "vision-small", *changes, *place]
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
    for trial in after.values():
        expected = {"finished": "finished", "pruned": "stopped"}[trial["status"]]
        assert json.loads((Path(trial["run"]) / "run.json").read_text())["status"] == expected
    assert {each["status"] for each in after.values()} >= {"finished"}
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


def test_validations_are_read_again_after_a_store_failed_between_size_and_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    failures = [StoreError("the store does not respond")]

    def read(_store: object, _metric: str) -> list[tuple[int, float]]:
        if failures:
            raise failures.pop()
        return [(4, 1.0)]

    monkeypatch.setattr(metrics, "validations", read)
    reader = metrics.MetricsReader("validation/loss")
    try:
        reader.watch(0, str(tmp_path))
        found: list[tuple[int, list[tuple[int, float]]]] = []
        wait_for(lambda: found.extend(reader.drain()) or found, "the validations")
    finally:
        reader.close()
    assert found == [(0, [(4, 1.0)])]
