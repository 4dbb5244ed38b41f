"""Searches whose trials are launched: several at once, pruned through their launcher, followed again after the
search was killed, launched again after a failure.

The launcher is tests/training/tune_elsewhere.py, whose runs outlive the search as those in a cluster do.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.training.launches import running, wait_for
from tests.training.tune_elsewhere import Elsewhere
from trainfleet.training.runs.reader import read_run

pytestmark = pytest.mark.timeout(240)
SPACE = {"optimizer.lr": {"log_uniform": [1e-5, 1e-1]}}
Document = dict[str, Any]


class Search:
    """`trainfleet tune --on elsewhere` in a folder of its own."""

    def __init__(self, folder: Path, place: Elsewhere, temporary: Path) -> None:
        self.folder, self.place, self.temporary = folder, place, temporary
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **tune: Any) -> subprocess.Popen[str]:
        section = {"sampler": "random", "scheduler": "none", "trials": 3, "space": SPACE, **tune}
        fixed = ["steps=16", "validation.every=4", "optimizer.warmup=1", "scaling.workers=1"]
        place = ["--on", "elsewhere", "--run", "night", "--storage", str(self.folder), "--json"]
        command = [sys.executable, "-m", "trainfleet", "tune", "lm-tiny", f"tune={json.dumps(section)}"]
        process = subprocess.Popen(
            [*command, *fixed, *place, *arguments],
            cwd=self.folder,
            env=os.environ
            | self.place.environment(ROOT)
            | {"NO_COLOR": "1", "COLUMNS": "160", "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def trials(self) -> list[Document]:
        """The stored state."""
        file = self.folder / "night-tune" / "trials.json"
        return list(json.loads(file.read_text())["trials"]) if file.exists() else []

    def until(self, what: Any, why: str) -> None:
        def reached() -> bool:
            assert self.processes[-1].poll() is None, self.processes[-1].communicate()
            return bool(what())

        wait_for(reached, why, 100)


def ended(process: subprocess.Popen[str], code: int = 0) -> tuple[list[Document], str]:
    """The trials that `--json` printed, by number, and the errors."""
    out, err = process.communicate(timeout=100)
    assert process.returncode == code, (out, err)
    return sorted(json.loads(out)["trials"] if out else [], key=lambda each: each["number"]), err


def names(*numbers: int) -> list[str]:
    return [f"night-trial-{number:04}" for number in numbers]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Elsewhere]:
    with Elsewhere(tmp_path).serve() as found:
        yield found


@pytest.fixture
def search(tmp_path: Path, place: Elsewhere) -> Iterator[Search]:
    """A search with a temporary folder of its own: the launches of a killed one end after it, and leave theirs."""
    folder = Path(tempfile.mkdtemp(prefix="tune", dir="/tmp"))  # short enough for the launches to use it
    made = Search(tmp_path, place, folder)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
            process.communicate()
    wait_for(lambda: not _launches(folder), "the launches of killed searches have ended")
    shutil.rmtree(folder)


def _launches(folder: Path) -> set[int]:
    """The processes that have a folder there and are running. A test process may have become their parent."""
    return running({int(each.name.split("-")[1]) for each in folder.glob("tf-*-*")})


@pytest.mark.deep
def test_trials_train_at_once_and_poor_ones_are_stopped_through_their_launcher(
    search: Search, place: Elsewhere
) -> None:
    found, _ = ended(search.start(trials=6, concurrent=2, scheduler="asha", reduction=2))
    assert sorted(place.started) == names(*range(6))
    assert place.at_once == 2
    pruned = [each for each in found if each["status"] == "pruned"]
    finished = [each for each in found if each["status"] == "finished"]
    assert pruned
    assert len(pruned) + len(finished) == 6
    rate = {each["number"]: each["values"]["optimizer.lr"] for each in found}
    assert min(rate, key=rate.__getitem__) in [each["number"] for each in finished]
    for each in pruned:
        assert 1 <= len(each["rows"]) < 4
        assert read_run(Path(each["run"]))["status"] == "stopped"
    for each in finished:
        assert [step for step, _ in each["rows"]] == [4, 8, 12, 16]
        assert [value for _, value in each["rows"]] == [
            pytest.approx(rate[each["number"]] + 1 / step) for step in (4, 8, 12, 16)
        ]
    assert not place.running()


@pytest.mark.deep
def test_a_killed_search_follows_its_running_trials_and_starts_none_twice(
    search: Search, place: Elsewhere
) -> None:
    place.held = set(names(0, 1))
    first = search.start(concurrent=2)
    search.until(lambda: [len(each["rows"]) for each in search.trials()] == [1, 1], "two trials validated")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert place.running() == place.held, "the runs outlive the search"
    before = search.trials()
    second = search.start(concurrent=2)
    search.until(lambda: "following" in _logs(search.folder), "followed again")
    place.held.clear()
    found, _ = ended(second)
    assert sorted(place.started) == names(0, 1, 2)
    assert [each["values"] for each in found[:2]] == [each["values"] for each in before]
    assert [each["status"] for each in found] == ["finished"] * 3
    assert all([step for step, _ in each["rows"]] == [4, 8, 12, 16] for each in found)


def _logs(folder: Path) -> str:
    return "".join(file.read_text() for file in (folder / "night-tune" / "logs").glob("*.log"))


def test_a_trial_that_is_to_be_pruned_is_stopped_by_the_next_search(search: Search, place: Elsewhere) -> None:
    place.held = set(names(0))
    first = search.start(trials=1)
    search.until(lambda: search.trials() and search.trials()[0]["rows"], "a validation")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    state = search.folder / "night-tune" / "trials.json"
    document = json.loads(state.read_text())
    document["trials"][0]["stopping"] = True  # killed after the decision, before the run had ended
    state.write_text(json.dumps(document))
    found, _ = ended(search.start(trials=1))
    assert (found[0]["status"], found[0]["rows"]) == ("pruned", [[4, pytest.approx(found[0]["rows"][0][1])]])
    assert read_run(Path(found[0]["run"]))["status"] == "stopped"
    assert place.started == names(0)


@pytest.mark.deep
def test_a_terminated_search_leaves_its_trials_running(search: Search, place: Elsewhere) -> None:
    place.held = set(names(0, 1))
    process = search.start(concurrent=2)
    search.until(lambda: [len(each["rows"]) for each in search.trials()] == [1, 1], "two trials validated")
    process.send_signal(signal.SIGTERM)
    _, err = ended(process, 130)
    assert "0 of 3 trials have ended; run the same command again to resume" in err
    assert place.running() == place.held
    place.held.clear()
    wait_for(lambda: not place.running(), "the runs finish alone")
    found, _ = ended(search.start(concurrent=2))
    assert sorted(place.started) == names(0, 1, 2)
    assert [len(each["rows"]) for each in found] == [4, 4, 4]


@pytest.mark.deep
def test_ctrl_c_stops_every_trial_and_the_next_search_resumes_them(search: Search, place: Elsewhere) -> None:
    place.held = set(names(0, 1))
    process = search.start(concurrent=2)
    search.until(lambda: [len(each["rows"]) for each in search.trials()] == [1, 1], "two trials validated")
    process.send_signal(signal.SIGINT)
    ended(process, 130)
    assert not place.running()
    assert [each["status"] for each in search.trials()] == ["running", "running"]
    place.held.clear()
    found, _ = ended(search.start(concurrent=2))
    assert sorted(place.started) == sorted([*names(0, 1), *names(0, 1, 2)])
    assert [each["status"] for each in found] == ["finished"] * 3


@pytest.mark.deep
def test_a_failed_trial_has_its_reason_and_is_launched_again_as_often_as_the_recipe_says(
    search: Search, place: Elsewhere
) -> None:
    place.fails = {"night-trial-0000": 1, "night-trial-0001": 5}
    found, _ = ended(search.start(trials=2, concurrent=2, retries=1))
    assert [place.started.count(name) for name in names(0, 1)] == [2, 2]
    assert [each["status"] for each in found] == ["finished", "failed"]
    assert [each["error"] for each in found] == ["", "the loss of night-trial-0001 is NaN"]
    assert {each["number"]: each["failures"] for each in search.trials()} == {0: 1, 1: 2}


def test_an_option_of_another_launcher_is_rejected_by_name(search: Search, place: Elsewhere) -> None:
    process = search.start("--pool", "l4")
    _, err = ended(process, 2)
    assert "`--pool` does nothing with --on elsewhere" in err
    assert not search.trials()
    assert not place.started
