"""Invalid batches and outputs of a workload are reported with the workload, the field and what was expected,
all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainfleet.errors import InputError
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.workloads import StepOutput
from trainfleet.training.workloads.batch_checks import BatchChecker
from trainfleet.training.workloads.lm.workload import LanguageModel

GOOD = {"x": torch.zeros(4, 3), "y": torch.zeros(4, dtype=torch.int64)}
DECLARED = {"x": ("float32", (3,)), "y": ("int64", ())}


def checker(**declared: Any) -> BatchChecker:
    return BatchChecker("mine", SimpleNamespace(metrics=("accuracy",), **{"fields": {}, **declared}))


BATCHES: list[tuple[dict[str, Any], Any, str]] = [
    ({}, [1, 2], "batch of train: is list (expected a dictionary of tensors by name)"),
    ({}, GOOD | {"y": [0, 0, 0, 0]}, "batch of train, `y`: is list (expected a tensor)"),
    (
        {},
        GOOD | {"x": torch.zeros(4, 3, dtype=torch.float64)},
        "batch of train, `x`: is float64 [4, 3] (expected float32, like the model's weights",
    ),
    (
        {},
        GOOD | {"y": torch.zeros(3)},
        "batch of train, `y`: has the shape [3] for 4 samples (expected 4 as first dimension)",
    ),
    ({}, GOOD | {"y": torch.tensor(1)}, "batch of train, `y`: has the shape [] for 4 samples"),
    (
        {},
        GOOD | {"x": torch.zeros(4, 3, device="meta")},
        "batch of train, `x`: is on meta (expected the CPU",
    ),
    (
        {"fields": DECLARED},
        GOOD | {"x": torch.zeros(4, 5)},
        "batch of train, `x`: is float32 [4, 5] (expected float32 [samples, 3])",
    ),
    (
        {"fields": DECLARED},
        GOOD | {"y": torch.zeros(4, dtype=torch.int32)},
        "batch of train, `y`: is int32 [4] (expected int64 [samples])",
    ),
    (
        {"fields": DECLARED},
        GOOD | {"z": torch.zeros(4)},
        "batch of train, `z`: is not declared (expected one of x, y)",
    ),
    ({"fields": DECLARED}, {"x": GOOD["x"]}, "batch of train, `y`: is missing (expected int64 [samples])"),
]


@pytest.mark.parametrize(("declared", "batch", "message"), BATCHES)
def test_an_invalid_batch_is_reported(declared: dict[str, Any], batch: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        checker(**declared).check_batch("train", [5, 6, 7, 8], batch)
    assert caught.value.summary == "the workload `mine` returned invalid values"
    assert [each for each in map(str, caught.value.problems) if each.startswith(message)], str(caught.value)
    assert len(caught.value.problems) == 1


def test_all_problems_of_a_batch_are_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        checker(fields=DECLARED).check_batch(
            "test", [0], {"x": torch.zeros(1, 3, dtype=torch.float16), "y": torch.zeros(1, 1)}
        )
    assert {problem.where for problem in caught.value.problems} == {
        "batch of test, `x`",
        "batch of test, `y`",
    }


def test_a_later_batch_with_another_type_is_reported() -> None:
    one = checker()
    one.check_batch("train", range(4), GOOD)
    one.check_batch("validation", range(2), {name: value[:2] for name, value in GOOD.items()})
    with pytest.raises(
        InputError, match=r"`y`: is int32 \[4\] \(expected int64 with 1 dimensions, as in the first batch\)"
    ):
        one.check_batch("train", range(4), GOOD | {"y": GOOD["y"].int()})


LOSS = torch.ones((), requires_grad=True) * 2
RIGHT = {"accuracy": (torch.tensor(1), 4)}
OUTPUTS: list[tuple[Any, str]] = [
    (LOSS, "forward_loss: is float32 [] (expected a trainfleet.training.workloads.StepOutput)"),
    (
        StepOutput(torch.ones(4, requires_grad=True) * 2, 4, RIGHT),
        "forward_loss, `loss`: is float32 [4] (expected a scalar",
    ),
    (
        StepOutput(torch.ones((), requires_grad=True).detach(), 4, RIGHT),
        "forward_loss, `loss`: was computed without gradients",
    ),
    (StepOutput(torch.tensor(3), 4, RIGHT), "forward_loss, `loss`: is int64 []"),
    (StepOutput(LOSS, 0, RIGHT), "forward_loss, `num_targets`: is int 0"),
    (StepOutput(LOSS, torch.ones(4), RIGHT), "forward_loss, `num_targets`: is float32 [4]"),
    (StepOutput(LOSS, LOSS, RIGHT), "forward_loss, `num_targets`: is float32 []"),
    (StepOutput(LOSS, 4), "forward_loss, `metric_sums`: has no `accuracy`, which `metrics` declares"),
]


@pytest.mark.parametrize(("outcome", "message"), OUTPUTS)
def test_an_invalid_output_is_reported(outcome: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        checker().check_output(outcome)
    assert str(caught.value.problems[0]).startswith(message)


def test_valid_batches_and_outputs_pass() -> None:
    one = checker(fields=DECLARED)
    one.check_batch("train", range(4), GOOD)
    one.check_output(StepOutput(LOSS, 4, RIGHT))
    with torch.no_grad():
        one.check_output(StepOutput(torch.tensor(1.0), 4, RIGHT))


def test_an_error_of_the_model_includes_its_input() -> None:
    with pytest.raises(RuntimeError) as caught, checker().describe_errors(GOOD):
        torch.nn.Linear(5, 1)(GOOD["x"])
    assert caught.value.__notes__ == [
        "the workload `mine` was computing the loss of a batch with x float32 [4, 3], y int64 [4]"
    ]


def test_an_invalid_batch_ends_the_run_before_its_first_step(
    tiny: Callable[..., Recipe],
    run: Callable[..., RunResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = LanguageModel.batch
    monkeypatch.setattr(
        LanguageModel,
        "batch",
        lambda self, split, indices: {**right(self, split, indices), "extra": torch.zeros(1, 2)},
    )
    with pytest.raises(
        InputError, match=r"the workload `lm` returned(.|\n)*`extra`: has the shape \[1, 2\] for 4 samples"
    ):
        run(tiny(), tmp_path / "run")
    assert not list((tmp_path / "run").glob("checkpoints/step-*"))


def test_a_vocabulary_other_than_the_checkpoints_is_reported(
    tiny: Callable[..., Recipe], run: Callable[..., RunResult], tmp_path: Path
) -> None:
    run(tiny("workload.data.tokens=bpe", "workload.data.vocabulary=300"), tmp_path / "run")
    changed = tiny("workload.data.tokens=bpe", "workload.data.vocabulary=280")
    with pytest.raises(InputError, match=r"the checkpoint's vocabulary has 297 tokens, this run's has 280"):
        run(changed, tmp_path / "run", allow_changes=("workload.data",))
