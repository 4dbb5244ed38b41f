"""The step loop: a killed run resumes exactly, and the number of ranks or micro batches changes only
rounding.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.checkpoint_reader import tensors_of
from tests.training.training_runs import StopAfter
from trainfleet.errors import InputError
from trainfleet.training.checkpoint import CheckpointError, step_name
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.reader import read_rows, read_run
from trainfleet.training.stores.folder import FolderOutput
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.loop import NotANumberError, train

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
RunRanks = Callable[..., list[int]]
CLOCKED = (
    "samples_per_second",
    "tokens_per_second",
    "data_wait",
    "communication",
    "least_data_wait",
    "slowest_data_wait",
    "slowest_data_wait_rank",
    "slowest_data_wait_node",
    "slowest_backward_seconds",
    "step_seconds",
    "checkpoint_seconds",
    "validation_seconds",
    "eta_seconds",
)


def results(run_dir: Path) -> list[dict[str, Any]]:
    """Every row of a run without the fields that depend on the clock."""
    return [
        {name: value for name, value in row.items() if name not in CLOCKED} for row in read_rows(run_dir).rows
    ]


def losses(run_dir: Path) -> list[float]:
    return [row["loss"] for row in results(run_dir) if row["kind"] == "train"]


def weights(run_dir: Path, step: int = 12) -> dict[str, torch.Tensor]:
    return {
        name: value
        for name, value in tensors_of(run_dir / "checkpoints" / step_name(step)).items()
        if name.startswith("model.")
    }


def test_a_run_learns_and_writes_its_run_folder(tmp_path: Path, tiny: Make, run: Run) -> None:
    result = run(tiny("steps=40", "log.tensorboard=true", "log.every=10"), tmp_path)
    rows = read_rows(tmp_path).rows
    assert [row["step"] for row in rows if row["kind"] == "train"] == [10, 20, 30, 40]
    assert losses(tmp_path)[-1] < losses(tmp_path)[0] - 1
    assert result.status == "finished"
    assert result.checkpoint == str(tmp_path / "checkpoints" / step_name(40))
    record = read_run(tmp_path)
    assert (record["status"], record["metrics"], record["baseline"]) == (
        "finished",
        result.metrics,
        result.baseline,
    )
    assert {"validation/loss", "validation/nats_per_byte", "test/loss"} <= set(result.metrics)
    assert (tmp_path / "recipe.yaml").is_file()
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_two_runs_are_equal_bit_for_bit(tmp_path: Path, tiny: Make, run: Run) -> None:
    run(tiny(), tmp_path / "a")
    run(tiny(), tmp_path / "b")
    assert results(tmp_path / "a") == results(tmp_path / "b")


def test_running_a_finished_run_again_changes_nothing(tmp_path: Path, tiny: Make, run: Run) -> None:
    first = run(tiny(), tmp_path)
    before = results(tmp_path)
    again = run(tiny(), tmp_path)
    assert (again.metrics, again.resumed_from, results(tmp_path)) == (first.metrics, 12, before)


KILLS = {
    "in a step": lambda: patch_nth("trainfleet.training.trainer.step.Stepper.forward", 7),
    "in the first step": lambda: patch_nth("trainfleet.training.trainer.step.Stepper.forward", 3),
    "in a validation": lambda: patch_nth("trainfleet.training.trainer.loop._Run._validate", 2),
    "before a save": lambda: kill_at_failpoint("staged:4"),
    "in the middle of a file": lambda: kill_at_failpoint("partly-written:4"),
    "between files and marker": lambda: kill_at_failpoint("in-save:4"),
    "while the marker is written": lambda: patch_nth("trainfleet.training.stores.store.Store.put", 6),
    "before the marker": lambda: kill_at_failpoint("before-marker:6"),
    "while old ones are purged": lambda: kill_at_failpoint("in-purge:2"),
    "in the test at the end": lambda: patch_nth("trainfleet.training.trainer.loop._Run._finish", 1),
}


def patch_nth(name: str, call: int) -> None:
    """Make this process kill itself in the `call`th call of a function."""
    import importlib

    parts = name.split(".")
    modules = next(end for end in range(1, len(parts)) if not parts[end].islower())
    owner: Any = importlib.import_module(".".join(parts[:modules]))
    for part in parts[modules:-1]:
        owner = getattr(owner, part)
    real, left = getattr(owner, parts[-1]), call

    def die(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)

    setattr(owner, parts[-1], die)


def kill_at_failpoint(point: str) -> None:
    """Kill this process at a failpoint of the product."""
    os.environ["TRAINFLEET_FAULT"] = point


@pytest.mark.sampled(2)
@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_run_resumes_exactly(
    tmp_path: Path, tiny: Make, run: Run, run_ranks: RunRanks, moment: str
) -> None:
    recipe = tiny("workload.model.dropout=0.1", "log.every=3", "checkpoint.every=2")
    run(recipe, tmp_path / "whole")
    assert run_ranks(recipe, tmp_path / "killed", 1, before=lambda rank: KILLS[moment]()) == [-signal.SIGKILL]
    run(recipe, tmp_path / "killed")
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(value, weights(tmp_path / "killed")[name])


@pytest.mark.deep
def test_a_killed_run_on_two_ranks_resumes_exactly(tmp_path: Path, tiny: Make, run_ranks: RunRanks) -> None:
    recipe = tiny("scaling.workers=2", "workload.model.dropout=0.1", "log.every=3", "checkpoint.every=2")
    assert run_ranks(recipe, tmp_path / "whole", 2) == [0, 0]
    killed = run_ranks(
        recipe,
        tmp_path / "killed",
        2,
        before=lambda rank: rank == 1 and patch_nth("trainfleet.training.trainer.step.Stepper.forward", 24),
    )
    assert killed[1] == -signal.SIGKILL
    assert (
        0 < max(int(path.name[5:]) for path in (tmp_path / "killed" / "checkpoints").glob("step-*[0-9]")) < 12
    )
    assert run_ranks(recipe, tmp_path / "killed", 2) == [0, 0]
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


def test_one_or_two_ranks_train_on_the_same_global_batches(
    tmp_path: Path, tiny: Make, run: Run, run_ranks: RunRanks
) -> None:
    run(tiny(), tmp_path / "one")
    assert run_ranks(tiny("scaling.workers=2"), tmp_path / "two", 2) == [0, 0]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=2e-5)
    one, two = (read_run(tmp_path / name)["metrics"] for name in ("one", "two"))
    assert two == pytest.approx(one, rel=1e-4)


@pytest.mark.deep
def test_a_run_resumes_with_another_number_of_ranks(
    tmp_path: Path, tiny: Make, run: Run, run_ranks: RunRanks
) -> None:
    run(tiny(), tmp_path / "one")
    recipe = tiny("scaling.workers=2", "log.every=3")
    assert run_ranks(recipe, tmp_path / "two", 2, should_stop=StopAfter(5)) == [0, 0]
    result = run(tiny("log.every=3"), tmp_path / "two")
    assert result.resumed_from == 5
    thirds = [sum(losses(tmp_path / "one")[start : start + 3]) / 3 for start in range(0, 12, 3)]
    assert losses(tmp_path / "two") == pytest.approx(thirds, rel=1e-4)


def test_accumulating_gradients_equals_one_large_batch(tmp_path: Path, tiny: Make, run: Run) -> None:
    run(tiny("batch.micro_batch=16"), tmp_path / "at-once")
    run(tiny("batch.micro_batch=2"), tmp_path / "bit-by-bit")
    assert losses(tmp_path / "bit-by-bit") == pytest.approx(losses(tmp_path / "at-once"), rel=2e-5)


def test_a_run_saves_when_asked_to_stop_and_resumes_exactly(tmp_path: Path, tiny: Make, run: Run) -> None:
    recipe = tiny("log.every=3")
    run(recipe, tmp_path / "whole")
    stopped = run(recipe, tmp_path / "stopped", should_stop=StopAfter(5))
    assert (stopped.status, stopped.step, read_run(tmp_path / "stopped")["status"]) == (
        "stopped",
        5,
        "stopped",
    )
    assert run(recipe, tmp_path / "stopped").resumed_from == 5
    assert results(tmp_path / "stopped") == results(tmp_path / "whole")


def test_a_damaged_checkpoint_costs_steps_and_does_not_change_the_result(
    tmp_path: Path, tiny: Make, run: Run
) -> None:
    run(tiny(), tmp_path / "whole")
    run(tiny(), tmp_path / "damaged", should_stop=StopAfter(9))
    newest = tmp_path / "damaged" / "checkpoints" / step_name(9) / "__0_0.distcp"
    newest.write_bytes(newest.read_bytes()[:-100])
    events: list[tuple[str, str]] = []
    result = run(tiny(), tmp_path / "damaged", on_event=lambda what, text: events.append((what, text)))
    assert result.resumed_from == 8
    assert events[0][0] == "fallback"
    assert step_name(9) in events[0][1]
    assert results(tmp_path / "damaged") == results(tmp_path / "whole")


def test_each_changed_recipe_key_is_rejected_unless_allowed(tmp_path: Path, tiny: Make, run: Run) -> None:
    run(tiny(), tmp_path, should_stop=StopAfter(5))
    changed = tiny("optimizer.lr=1e-4", "steps=14", "log.every=2")
    with pytest.raises(InputError) as caught:
        run(changed, tmp_path)
    assert {problem.where for problem in caught.value.problems} == {"optimizer.lr", "steps"}
    result = run(changed, tmp_path, allow_changes=("optimizer.lr", "steps"))
    assert (result.resumed_from, result.step) == (5, 14)


def test_other_data_is_rejected(tmp_path: Path, tiny: Make, run: Run, text_folder: Path) -> None:
    source = tmp_path / "text"
    for path in text_folder.rglob("*.txt"):
        target = source / path.relative_to(text_folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    recipe = tiny(f"workload.data.source={source}")
    run(recipe, tmp_path / "run", should_stop=StopAfter(5))
    next(iter(sorted(source.rglob("*.txt")))).write_text("something else")
    with pytest.raises(InputError, match="the data differs from the data"):
        run(recipe, tmp_path / "run")


def test_a_nan_loss_ends_the_run_and_names_the_last_valid_checkpoint(
    tmp_path: Path, tiny: Make, run: Run
) -> None:
    seen: list[int] = []
    recipe = tiny("workload.model.context=16")

    def poison(step: int, _: int) -> None:
        seen.append(step)
        if step == 6:
            for parameter in poisoned.strategy.module.parameters():
                parameter.data.fill_(float("nan"))

    from trainfleet.training.trainer import loop

    with pytest.MonkeyPatch.context() as patched:
        real = loop._Run.__init__

        def remember(self: Any, *arguments: Any) -> None:
            nonlocal poisoned
            real(self, *arguments)
            poisoned = self

        poisoned: Any = None
        patched.setattr(loop._Run, "__init__", remember)
        with pytest.raises(NotANumberError, match="stopped at step 7: the gradient is NaN or Inf") as caught:
            run(recipe, tmp_path, on_step=poison)
    assert str(tmp_path / "checkpoints" / step_name(4)) in str(caught.value)
    assert seen[-1] == 6
    assert read_run(tmp_path)["status"] == "failed"
    assert run(recipe, tmp_path).resumed_from == 4


def test_a_full_disk_ends_all_ranks_with_one_clear_error(tmp_path: Path, tiny: Make, cache: Path) -> None:
    from tests.training.ranks import start_ranks
    from trainfleet.training.runtime import process_group

    def work(rank: int) -> None:
        def full(self: FolderOutput) -> None:
            if self._final.suffix == ".distcp":
                raise OSError(28, "No space left on device")
            real(self)

        real = FolderOutput.close

        world = process_group.init_from_env(use_gpu=False)
        FolderOutput.close = full  # type: ignore[method-assign]  # in a process of its own
        try:
            train(tiny("scaling.workers=2"), RunContext(tmp_path, world.rank, world.world_size, cache=cache))
        except CheckpointError as error:
            (tmp_path / f"messages-{rank}").write_text(str(error))
        process_group.shutdown()

    assert start_ranks(work, 2) == [0, 0]
    messages = [(tmp_path / f"messages-{rank}").read_text() for rank in range(2)]
    assert messages[0] == messages[1]
    assert "No space left on device" in messages[0]
    assert "there is no checkpoint yet" in messages[0]


def test_a_batch_that_cannot_be_divided_among_the_ranks_is_rejected(
    tmp_path: Path, tiny: Make, cache: Path
) -> None:
    with pytest.raises(InputError, match="2 cannot be divided among 3 ranks"):
        train(
            tiny("batch.global_batch=2", "batch.micro_batch=2"),
            RunContext(tmp_path, rank=0, world_size=3, cache=cache),
        )


def test_an_incomplete_line_is_not_a_row(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 1}) + '\n{"kind": "tr')
    assert read_rows(tmp_path).rows == [{"kind": "train", "step": 1}]
