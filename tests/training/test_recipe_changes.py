"""Each key that a resumed run may change takes effect, and changes nothing else: the table of docs/training.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT
from tests.training.training_runs import StopAfter
from trainfleet.errors import InputError
from trainfleet.training.recipe.changes import FREE_KEYS
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.reader import read_rows
from trainfleet.training.trainer import loop
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.trainer.device_memory import DeviceMemoryError
from trainfleet.training.trainer.state import completed

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
STOPPED, STEPS, BATCH = 5, 12, 16


@dataclass(frozen=True)
class Changed:
    """A change at step 5 of 12, and what the resumed run then has.

    Attributes:
        overrides: the change.
        keys: of the documentation; allowed with `--allow-change` unless they are free.
        before: further overrides of both recipes.
        steps, samples: of the whole run.
        rows: of the rows after the change, fields and their value.
        groups: of the optimizer, settings and their value, in the groups that have them.
    """

    overrides: tuple[str, ...]
    keys: tuple[str, ...]
    before: tuple[str, ...] = ()
    steps: int = STEPS
    samples: int = STEPS * BATCH
    rows: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Any] = field(default_factory=dict)


CHANGES = {
    "lr": Changed(
        ("optimizer.lr=1e-4",), ("optimizer.lr",), ("optimizer.schedule=constant",), rows={"lr": 1e-4}
    ),
    "betas": Changed(("optimizer.betas=[0.8, 0.9]",), ("optimizer.betas",), groups={"betas": (0.8, 0.9)}),
    "eps": Changed(("optimizer.eps=1e-6",), ("optimizer.eps",), groups={"eps": 1e-6}),
    "weight_decay": Changed(
        ("optimizer.weight_decay=0.5",), ("optimizer.weight_decay",), groups={"weight_decay": 0.5}
    ),
    "momentum": Changed(
        ("optimizer.momentum=0.8",),
        ("optimizer.momentum",),
        ("optimizer.name=muon",),
        groups={"momentum": 0.8},
    ),
    "schedule": Changed(
        ("optimizer.schedule=constant",), ("optimizer.schedule",), ("optimizer.lr=1e-3",), rows={"lr": 1e-3}
    ),
    "steps": Changed(("steps=14",), ("steps",), steps=14, samples=14 * BATCH),
    "micro_batch": Changed(("batch.micro_batch=2",), ("batch.micro_batch",)),
    "micro_batch, after a probe": Changed(
        ("batch.micro_batch=2",), ("batch.micro_batch",), ("controllers.micro_batch=probe",)
    ),
    "global_batch": Changed(
        ("batch.global_batch=32",),
        ("batch.global_batch",),
        ("optimizer.schedule=constant", "optimizer.lr=1e-3"),
        samples=STOPPED * BATCH + (STEPS - STOPPED) * 32,
        rows={"global_batch": 32, "lr": 1e-3},
    ),
    "precision": Changed(("precision=bf16",), ("precision",)),
    "ema": Changed(("ema.decay=0.9",), ("ema",)),
    "ema, another decay": Changed(("ema.decay=0.9",), ("ema",), ("ema.decay=0.5",)),
    "ema, dropped": Changed(("ema.decay=null",), ("ema",), ("ema.decay=0.5",)),
    "reduce_precision": Changed(("reduce_precision=bf16",), ("reduce_precision",)),
    "float8": Changed(("float8.scaling=rowwise", "float8.emulate=true"), ("float8",), ("precision=bf16",)),
    "strategy": Changed(("strategy=fsdp",), ("strategy",)),
    "activation_checkpointing": Changed(("activation_checkpointing=full",), ("activation_checkpointing",)),
    "loss_chunk": Changed(("workload.model.loss_chunk=24",), ("workload.model.loss_chunk",)),
    "controllers.rate": Changed(
        ("controllers.rate.kind=restarts", "controllers.rate.cycle=4"),
        ("controllers.rate",),
        ("controllers.rate.kind=plateau", "optimizer.schedule=constant"),
    ),
    "controllers.batch": Changed(
        ("controllers.batch.kind=noise",), ("controllers.batch",), rows={"global_batch": BATCH}
    ),
    "guards": Changed(("guards.spike=skip", "guards.window=8"), ("guards",)),
    "seed": Changed(("seed=7",), ("seed",)),
    "checkpoint.every": Changed(("checkpoint.every=3",), ("checkpoint.every",)),
    "checkpoint.every, auto": Changed(
        ("checkpoint.every=auto", "checkpoint.mtbf_hours=24"),
        ("checkpoint.every", "checkpoint.mtbf_hours"),
        rows={"checkpoint_every": 20},
    ),
    "validation": Changed(("validation.every=3", "validation.samples=4"), ("validation",)),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_key_takes_effect_when_a_run_resumes(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    change, optimizers = CHANGES[name], []
    real = loop.make_optimizer
    monkeypatch.setattr(
        loop, "make_optimizer", lambda *given: optimizers.append(real(*given)) or optimizers[-1]
    )
    run(tiny(*change.before), tmp_path, should_stop=StopAfter(STOPPED))
    changed = tiny(*change.before, *change.overrides)
    allow = tuple(key for key in change.keys if key not in FREE_KEYS)
    if allow:
        with pytest.raises(InputError) as caught:
            run(changed, tmp_path)
        assert all(problem.where.startswith(change.keys) for problem in caught.value.problems)
    result = run(changed, tmp_path, allow_changes=allow)
    rows = [row for row in read_rows(tmp_path).rows if row["kind"] == "train"]
    assert (result.resumed_from, result.step) == (STOPPED, change.steps)
    assert sum(row["global_batch"] for row in rows) == change.samples
    for row in rows[STOPPED:]:
        assert {key: row[key] for key in change.rows} == change.rows
        assert row["loss"] < rows[0]["loss"]
    for key, value in change.groups.items():
        found = {group[key] for group in optimizers[-1].param_groups if key in group}
        assert found == ({value, 0.0} if key == "weight_decay" else {value})


@pytest.mark.parametrize("name", ["micro_batch", "micro_batch, after a probe"])
def test_a_resumed_run_uses_the_micro_batch_of_its_recipe(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    used: list[int] = []
    real = loop.Stepper.compute_gradients

    def noted(self: Any, *arguments: Any) -> Any:
        used.append(self.micro_batch)
        return real(self, *arguments)

    monkeypatch.setattr(loop.Stepper, "compute_gradients", noted)
    change = CHANGES[name]
    run(tiny(*change.before), tmp_path, should_stop=StopAfter(STOPPED))
    before = used[-1]
    run(tiny(*change.before, *change.overrides), tmp_path)
    assert before != 2
    assert set(used[STOPPED:]) == {2}


def test_the_optimizer_of_a_run_can_never_change(tmp_path: Path, tiny: Make, run: Run) -> None:
    run(tiny(), tmp_path, should_stop=StopAfter(STOPPED))
    for allowed in ("optimizer.name", "optimizer"):
        with pytest.raises(InputError) as caught:
            run(tiny("optimizer.name=muon"), tmp_path, allow_changes=(allowed,))
        (problem,) = caught.value.problems
        assert (problem.where, problem.fix) == ("optimizer.name", "restore it, or start a new run")


def test_a_larger_batch_neither_jumps_in_the_schedule_nor_scales_the_rate(
    tmp_path: Path, tiny: Make, run: Run
) -> None:
    def rates(folder: str, *changes: str) -> list[float]:
        run(tiny(), tmp_path / folder, should_stop=StopAfter(STOPPED))
        run(
            tiny(*changes), tmp_path / folder, should_stop=StopAfter(3), allow_changes=("batch.global_batch",)
        )
        run(tiny(*changes), tmp_path / folder)  # the change is part of its checkpoint
        return [row["lr"] for row in read_rows(tmp_path / folder).rows if row["kind"] == "train"]

    assert rates("changed", "batch.global_batch=32") == pytest.approx(rates("same"), rel=1e-12)


def test_a_larger_batch_of_a_run_in_epochs_sees_the_same_samples(
    tmp_path: Path, tiny: Make, run: Run
) -> None:
    epochs = ("steps=null", "epochs=0.5")
    run(tiny(*epochs), tmp_path, should_stop=StopAfter(STOPPED))
    result = run(tiny(*epochs, "batch.global_batch=32"), tmp_path, allow_changes=("batch.global_batch",))
    rows = [row for row in read_rows(tmp_path).rows if row["kind"] == "train"]
    assert 0.5 <= rows[-1]["epoch"] < 0.6
    assert result.step < rows[0]["steps"]


def test_a_key_that_the_version_of_the_checkpoint_did_not_have_counts_as_its_default(tiny: Make) -> None:
    now = tiny().model_dump(mode="json")
    older = {key: value for key, value in now.items() if key != "controllers"}
    assert completed(older) == now
    assert completed({**older, "removed": 1}) == {**older, "removed": 1}


def test_the_documentation_has_a_row_for_each_tested_change() -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    table = page.partition("### Changes between starts")[2].partition("\n## ")[0]
    assert table
    missing = {key for change in CHANGES.values() for key in change.keys if f"`{key}`" not in table}
    assert not missing


@pytest.mark.parametrize(
    ("overrides", "fix"),
    [
        (("batch.global_batch=32", "batch.micro_batch=16"), "batch.micro_batch=8, then"),
        (("batch.global_batch=24", "batch.micro_batch=12"), "batch.micro_batch=6, then"),
        (
            ("batch.global_batch=8", "batch.micro_batch=1"),
            "activation_checkpointing=full or strategy=fsdp, then",
        ),
        (
            ("batch.micro_batch=1", "activation_checkpointing=full", "strategy=fsdp"),
            "sharding.cpu_offload=true, then",
        ),
    ],
)
def test_a_first_step_that_does_not_fit_suggests_a_recipe_that_may(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch, overrides: Any, fix: str
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    monkeypatch.setattr(loop.Stepper, "forward", full)
    with pytest.raises(DeviceMemoryError) as caught:
        run(tiny(*overrides), tmp_path)
    first, cause = caught.value.problems
    assert (first.where, first.fix.startswith(fix)) == ("batch.micro_batch", True)
    assert cause.what == "CUDA out of memory. Tried to allocate 2.00 GiB."


def test_a_later_step_without_memory_is_left_to_a_restart(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = loop.Stepper.compute_gradients, []

    def full_later(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(self, *arguments)

    monkeypatch.setattr(loop.Stepper, "compute_gradients", full_later)
    with pytest.raises(torch.OutOfMemoryError):
        run(tiny(), tmp_path)
