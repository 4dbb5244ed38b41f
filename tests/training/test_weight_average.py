"""The average of the weights: its value, its place in checkpoints, and that training does not notice it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.training.checkpoint_reader import tensors_of
from tests.training.training_runs import StopAfter
from trainfleet.training.checkpoint import step_name
from trainfleet.training.data import spread
from trainfleet.training.inference.loaded import load_run
from trainfleet.training.recipe.schema import Ema, Recipe
from trainfleet.training.runs.reader import read_rows
from trainfleet.training.trainer import loop
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.strategies import make_strategy
from trainfleet.training.trainer.weight_average import WeightAverage, decay_of
from trainfleet.training.workloads import make_workload

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
DECAY = "ema.decay=0.8"


def values(folder: Path, kind: str, name: str) -> list[float]:
    return [row[name] for row in read_rows(folder).rows if row["kind"] == kind]  # type: ignore[misc]


def module() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    made[2].bias.requires_grad_(False)
    return made


def moved(weights: nn.Module, step: int) -> None:
    random = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for each in weights.parameters():
            if each.requires_grad:
                each.add_(torch.randn(each.shape, generator=random))


def test_the_average_is_that_of_torch() -> None:
    mine = module()
    average = WeightAverage(Ema(decay=0.9), mine)
    theirs = AveragedModel(mine, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    theirs.n_averaged.fill_(1)  # otherwise the first update copies the weights
    for step in range(1000, 1010):
        moved(mine, step)
        average.update(step)
        theirs.update_parameters(mine)
    expected = dict(theirs.module.named_parameters())
    assert set(average.tensors) == {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight"}
    for name, value in average.tensors.items():
        torch.testing.assert_close(value, expected[name].data, msg=name)


def test_the_decay_is_smaller_at_first() -> None:
    assert [decay_of(0.999, step) for step in (1, 8)] == [2 / 11, 0.5]
    assert decay_of(0.999, 100_000) == 0.999
    assert decay_of(0.1, 1) == 0.1


def test_a_step_that_the_device_skipped_does_not_count() -> None:
    mine = module()
    other = copy.deepcopy(mine)
    late, at_once = WeightAverage(Ema(decay=0.9), mine), WeightAverage(Ema(decay=0.9), other)
    for step, valid in enumerate((True, False, True), start=1):
        moved(mine, step)
        late.update(step, torch.tensor(valid))
        moved(other, step)
        if valid:
            at_once.update(step)
    for name, value in late.tensors.items():
        assert torch.equal(value, at_once.tensors[name]), name


def test_the_weights_are_back_after_an_error() -> None:
    mine = module()
    average = WeightAverage(Ema(decay=0.9), mine)
    moved(mine, 1)
    weights = {name: each.detach().clone() for name, each in mine.named_parameters()}
    averaged = {name: each.clone() for name, each in average.tensors.items()}

    def failing() -> None:
        with average.applied():
            for name, value in averaged.items():
                assert torch.equal(mine.get_parameter(name), value), name
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    for name, value in weights.items():
        assert torch.equal(mine.get_parameter(name), value), name
    for name, value in averaged.items():
        assert torch.equal(average.tensors[name], value), name


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_training_does_not_notice_the_average_and_a_resume_has_the_same_bits(
    tmp_path: Path, tiny: Make, run: Run, strategy: str
) -> None:
    given = (f"strategy={strategy}", "workload.model.dropout=0.1")
    run(tiny(*given), tmp_path / "without")
    run(tiny(*given, DECAY), tmp_path / "with")
    run(tiny(*given, DECAY), tmp_path / "cut", should_stop=StopAfter(5))
    run(tiny(*given, DECAY), tmp_path / "cut")
    without, averaged, cut = (tmp_path / name for name in ("without", "with", "cut"))
    for name in ("loss", "grad_norm"):
        assert values(averaged, "train", name) == values(without, "train", name) == values(cut, "train", name)
    measured = values(averaged, "validation", "validation/loss")
    assert measured == values(cut, "validation", "validation/loss")
    for found, other in zip(measured, values(without, "validation", "validation/loss"), strict=True):
        assert found > other  # the loss of this recipe falls fast, and the average lags behind
    tensors, others, plain = (
        tensors_of(each / "checkpoints" / step_name(12)) for each in (averaged, cut, without)
    )
    assert {name for name in tensors if name not in plain} == {
        name.replace("model.", "ema.", 1) for name in plain if name.startswith("model.")
    }
    for name, value in tensors.items():
        assert torch.equal(value, others[name]), name


def test_a_loaded_run_has_the_average(tmp_path: Path, tiny: Make, run: Run, cache: Path) -> None:
    result = run(tiny(DECAY, "checkpoint.keep_last=3"), tmp_path)
    opened = load_run(str(tmp_path), "newest", cache=cache)
    tensors = tensors_of(tmp_path / "checkpoints" / step_name(12))
    for name, value in opened.model.named_parameters():
        assert torch.equal(value, tensors[f"ema.{name}"]), name
        assert not torch.equal(value, tensors[f"model.{name}"]), name
    seen = spread(opened.workload.size("test"), opened.recipe.validation.samples)
    with torch.no_grad():
        output = opened.workload.forward_loss(opened.model, opened.workload.batch("test", seen))
    assert float(output.loss) / output.num_targets == pytest.approx(result.metrics["test/loss"], rel=1e-5)


def test_an_average_that_begins_when_a_run_resumes_starts_from_its_weights(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tiny(), tmp_path, should_stop=StopAfter(5))
    saved = tensors_of(tmp_path / "checkpoints" / step_name(5))
    seen: list[dict[str, torch.Tensor]] = []
    real = loop._Run._resume

    def resumed(self: Any) -> int:
        step = real(self)
        seen.append({name: each.clone() for name, each in self.state.average.tensors.items()})
        return step

    monkeypatch.setattr(loop._Run, "_resume", resumed)
    run(tiny(DECAY), tmp_path, allow_changes=("ema.decay",))
    assert seen[0]
    for name, value in seen[0].items():
        assert torch.equal(value, saved[f"model.{name}"]), name
    assert any(name.startswith("ema.") for name in tensors_of(tmp_path / "checkpoints" / step_name(12)))


def test_no_shard_of_the_average_stays_gathered(tmp_path: Path, tiny: Make, cache: Path) -> None:
    """Four ranks of which only this one exists; their collectives do nothing."""
    recipe = tiny("strategy=fsdp", DECAY)
    workload = make_workload(recipe, cache)
    tokens = workload.batch("train", [0, 1])["inputs"]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        strategy = make_strategy(recipe, workload.build_model, RunContext(tmp_path, 0, 4, 0, 4))
        average = WeightAverage(recipe.ema, strategy.module)
        assert all(isinstance(each, DTensor) for each in average.tensors.values())
        with torch.no_grad(), average.applied():
            strategy.module(tokens)
            gathered = [
                name for name, each in strategy.module.named_parameters() if type(each.data) is not DTensor
            ]
        assert gathered  # what the next pass would use
        assert all(isinstance(each, DTensor) for each in strategy.module.parameters())
    finally:
        dist.destroy_process_group()
