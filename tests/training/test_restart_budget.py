"""`scaling.restarts` counts failures without a later checkpoint: a run may fail often, but not at one place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.launches import Launcher, rows, untimed
from trainfleet.errors import TrainfleetError
from trainfleet.training.checkpoint.retention import step_name
from trainfleet.training.runs.schema import MARKER
from trainfleet.training.runtime import ray_cluster, restarts
from trainfleet.training.runtime.ray_cluster import RayCluster
from trainfleet.training.runtime.restarts import Progress, RefilledPolicy, RestartBudget

pytestmark = pytest.mark.timeout(900)

FAILING = """
import os
from pathlib import Path
from typing import Literal
from trainfleet.training.workloads.lm.settings import LmSettings
from trainfleet.training.workloads.lm.workload import LanguageModel

FOLDER, FAILURES, AFTER = Path(os.environ["FAILURES_IN"]), int(os.environ["FAILURES"]), int(os.environ["AFTER"])

class Failing(LanguageModel):
    class Settings(LmSettings):
        name: Literal["failing:Failing"]

    calls = 0

    def batch(self, split, indices):
        self.calls += split == "train"
        if self.calls > AFTER and (seen := len(list(FOLDER.iterdir()))) < FAILURES:
            (FOLDER / str(seen)).touch()
            raise RuntimeError(f"failure {seen + 1} of {FAILURES}")
        return super().batch(split, indices)
"""
"""lm, which fails as often as FAILURES says, each time after as many training batches as AFTER says."""

ONE_RANK = ("workload.name=failing:Failing", "scaling.workers=1", "checkpoint.every=2", "steps=16")
ONE_BATCH_PER_STEP = ("batch.global_batch=8", "batch.micro_batch=8")


@pytest.fixture
def launcher(
    tmp_path: Path, text_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Launcher]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "failing.py").write_text(FAILING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"), prepend=os.pathsep)
    made = Launcher(tmp_path / "runs", text_folder, cache)
    yield made
    made.end()


def launch(launcher: Launcher, name: str, failures: int, after: int, on: str, allowed: int = 2) -> Any:
    folder = launcher.storage.parent / f"failures-{name}"
    folder.mkdir()
    places = {"FAILURES_IN": str(folder), "FAILURES": str(failures), "AFTER": str(after)}
    overrides = (*ONE_RANK, *ONE_BATCH_PER_STEP, f"scaling.restarts={allowed}")
    return launcher(name, *overrides, on=on, **places)


def commit(folder: Path, step: int) -> None:
    (folder / step_name(step)).mkdir(parents=True)
    (folder / step_name(step) / MARKER).touch()


@pytest.mark.launch
@pytest.mark.deep
@pytest.mark.parametrize(("on", "allowed", "failures"), [("torchrun", 2, 5), ("local", 1, 2)])
def test_a_run_that_fails_every_few_checkpoints_finishes(
    launcher: Launcher, on: str, allowed: int, failures: int
) -> None:
    whole = launch(launcher, "whole", failures=0, after=0, on="torchrun")
    assert whole.finish()[0] == 0
    failing = launch(launcher, "failing", failures=failures, after=4, on=on, allowed=allowed)
    code, _, errors = failing.finish()
    assert code == 0, errors
    starts = json.loads((failing.run_dir / "run.json").read_text())["starts"]
    assert len(starts) == failures + 1 > allowed + 1, "more failures than restarts without a checkpoint"
    assert untimed(failing.run_dir) == untimed(whole.run_dir)


@pytest.mark.launch
@pytest.mark.parametrize(
    ("on", "allowed"), [("torchrun", 2), pytest.param("local", 1, marks=pytest.mark.deep)]
)
def test_a_run_that_fails_at_one_place_ends_and_says_so(launcher: Launcher, on: str, allowed: int) -> None:
    failing = launch(launcher, "failing", failures=9, after=1, on=on, allowed=allowed)
    code, _, errors = failing.finish()
    assert code != 0
    assert f"the workers failed {allowed + 1} times without a later checkpoint" in errors
    assert f"failure {allowed + 1} of 9" in errors, "the reason is that of the last attempt"
    record = json.loads((failing.run_dir / "run.json").read_text())
    assert len(record["starts"]) == allowed + 1
    assert rows(failing.run_dir)[-1]["step"] == 1


@pytest.mark.parametrize(
    ("allowed", "failures", "restarts_allowed"),
    [
        (0, [True], [False]),
        (2, [False, False, False], [True, True, False]),
        (2, [False, True, False, True, False, True, False, False], [True] * 7 + [False]),
    ],
)
def test_a_later_checkpoint_refills_the_budget(
    allowed: int, failures: list[bool], restarts_allowed: list[bool]
) -> None:
    """`failures`: for each one, whether there was a later checkpoint since the one before."""
    progress = iter(failures)
    budget = RestartBudget(allowed, lambda: next(progress))
    assert [budget.failed() for _ in failures] == restarts_allowed


def test_progress_is_a_later_committed_checkpoint(tmp_path: Path) -> None:
    progress = Progress(str(tmp_path))
    assert not progress.made(), "there is nothing to compare with"
    (tmp_path / step_name(3)).mkdir()
    assert not progress.made(), "a checkpoint without its marker is not committed"
    commit(tmp_path, 4)
    assert progress.made()
    assert not progress.made()
    commit(tmp_path, 2)
    assert not progress.made(), "an earlier checkpoint is not progress"


def test_a_store_that_does_not_answer_counts_as_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Progress(str(tmp_path))
    progress.made()
    commit(tmp_path, 4)
    monkeypatch.setattr(restarts, "newest_step", lambda _: (_ for _ in ()).throw(TrainfleetError("down")))
    assert not progress.made()
    monkeypatch.undo()
    assert progress.made(), "the next failure finds the checkpoint"


def ray_error() -> Exception:
    from ray.train import WorkerGroupError

    return WorkerGroupError("a worker failed", {0: RuntimeError("boom")})


def test_ray_restarts_as_often_as_there_is_progress() -> None:
    from ray.train import FailureConfig
    from ray.train.v2._internal.execution.failure_handling import FailureDecision, create_failure_policy

    progress = iter([False, True, True, False, True, False, False])
    policy = RefilledPolicy(create_failure_policy(FailureConfig(max_failures=2)), lambda: next(progress))
    decisions = [policy.make_decision(ray_error()) for _ in range(7)]
    assert decisions == [FailureDecision.RETRY] * 6 + [FailureDecision.RAISE]


NO_MEMORY = """2 worker(s) were killed due to the node running low on memory.
Memory on the node (IP: 10.0.0.1, ID: abc) was 2.9GB used / 3.0GB limit (0.967000)
Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/ ..."""
"""As Ray 2.60 words it."""


def test_a_worker_that_ray_kills_for_memory_while_it_starts_may_restart() -> None:
    from ray.exceptions import OutOfMemoryError
    from ray.train import ControllerError, FailureConfig
    from ray.train.v2._internal.execution.failure_handling import FailureDecision, create_failure_policy

    retry, end = FailureDecision.RETRY, FailureDecision.RAISE
    killed, mistake = ControllerError(OutOfMemoryError(NO_MEMORY)), ControllerError(ValueError("a mistake"))
    own = create_failure_policy(FailureConfig(max_failures=2))
    assert own.make_decision(killed) == end, "Ray now does this itself: `restarts.of_worker` can go"
    policy = RefilledPolicy(create_failure_policy(FailureConfig(max_failures=2)), lambda: False)
    assert [policy.make_decision(killed) for _ in range(3)] == [retry, retry, end]
    assert RefilledPolicy(own, lambda: False).make_decision(mistake) == end


def test_the_reason_of_a_lack_of_memory_is_not_its_advice() -> None:
    from ray.exceptions import OutOfMemoryError
    from ray.train import ControllerError

    found = restarts.reason_of(ControllerError(OutOfMemoryError(NO_MEMORY)))
    assert found == "2 worker(s) were killed due to the node running low on memory."
    assert restarts.reason_of(ControllerError(ValueError("one\ntwo\n"))) == "two"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The parts of Ray Train's controllers, which are not started."""
    from ray.train.torch import TorchTrainer

    asked: list[dict[str, Any]] = []

    def run(_: Any, **parts: Any) -> Any:
        asked.append(parts)
        return SimpleNamespace(error=ray_error())

    monkeypatch.setattr(TorchTrainer, "_initialize_and_run_controller", run)
    # It would start a Ray to hold the function.
    monkeypatch.setattr("ray.train.v2.api.data_parallel_trainer.ObjectRefWrapper", lambda function: function)
    return asked


def train(tmp_path: Path, checkpoints: str | None) -> str:
    """Train on a Ray whose workers fail at once; the error."""
    from trainfleet.training.recipe.schema import ScalingConfig

    with pytest.raises(TrainfleetError) as caught:
        RayCluster(own=True, storage=str(tmp_path)).train(
            lambda config: None, {}, ScalingConfig(restarts=2), checkpoints
        )
    return str(caught.value)


def test_ray_2_60_lets_its_failure_policy_be_replaced(tmp_path: Path, parts: list[dict[str, Any]]) -> None:
    """The hook is private to Ray 2.60. If a later Ray fails here, `ray_cluster._trainer_class` needs another."""
    from ray import cloudpickle

    message = train(tmp_path, str(tmp_path / "checkpoints"))
    policy = cloudpickle.loads(cloudpickle.dumps(parts[0]["failure_policy"]))
    assert isinstance(policy, RefilledPolicy), "it goes to the controller's process"
    policy.make_decision(ray_error())
    assert message.startswith("the workers failed 3 times without a later checkpoint")


def test_another_ray_counts_all_failures_and_claims_nothing_else(
    tmp_path: Path, parts: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.train.torch import TorchTrainer

    monkeypatch.setattr(TorchTrainer, "fit", lambda self: (_ for _ in ()).throw(ray_error()))
    message = train(tmp_path, str(tmp_path / "checkpoints"))
    assert not parts
    assert message.startswith("the workers failed: ")
    assert ray_cluster._trainer_class().refilled is False
