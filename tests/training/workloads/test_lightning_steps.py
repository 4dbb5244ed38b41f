"""What an adapted Lightning module may do in its steps, and what is rejected by name before training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.training.workloads.lightning_modules import Lit, Plain, Points, Steps, samples
from trainfleet.errors import InputError
from trainfleet.training.workloads.lightning.step_module import StepModule
from trainfleet.training.workloads.lightning.unsupported import HOOKS, MEMBERS


def built(module: Callable[[], nn.Module], **members: Any) -> StepModule:
    """The model of `Points` with another module and other members."""
    kind = type("Points", (Points,), {"make_module": lambda self: module(), **members})
    return kind(Points.Settings(name=f"{Points.__module__}:Points"), members.pop("cache")).build_model()


def messages(error: pytest.ExceptionInfo[InputError]) -> list[str]:
    return [str(problem) for problem in error.value.problems]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("base", [Lit, Plain])
def test_a_hook_that_the_loop_does_not_call_is_rejected_by_name(
    hook: str, base: type[nn.Module], tmp_path: Path
) -> None:
    module = type("Mine", (base,), {hook: lambda self, *_: None})
    with pytest.raises(InputError) as error:
        built(module, cache=tmp_path)
    assert messages(error) == [f"Mine.{hook}: the step loop does not call this hook ({HOOKS[hook]})"]


class Manual(Lit):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class SeveralLoaders(Lit):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None: ...


class OneLoader(Lit):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None: ...


class Iterates(Lit):
    def training_step(self, dataloader_iter: Any) -> torch.Tensor: ...


class NoValidation(nn.Module):
    training_step, test_step = Steps.training_step, Steps.test_step


REJECTED = [
    (Manual, "Manual.automatic_optimization: manual optimization is not supported"),
    (SeveralLoaders, "SeveralLoaders.validation_step: takes `dataloader_idx`, which the step loop does not"),
    (Iterates, "Iterates.training_step: takes `dataloader_iter`, which the step loop does not have"),
    (NoValidation, "NoValidation.validation_step: is not defined (the validation split needs it)"),
]


@pytest.mark.parametrize(("module", "message"), REJECTED)
def test_what_a_module_needs_of_a_trainer_is_rejected(
    module: type[nn.Module], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        built(module, cache=tmp_path)
    assert [each for each in messages(error) if each.startswith(message)] == messages(error)


def test_modules_with_default_hooks_and_one_loader_are_accepted(tmp_path: Path) -> None:
    predicts = type("Predicts", (Lit,), {"predict_step": lambda *_: 0, "on_predict_start": lambda _: None})
    for module in (Lit, Plain, OneLoader, predicts):
        assert isinstance(built(module, cache=tmp_path).lightning_module, module)


def test_the_optimizer_of_a_module_is_replaced_only_if_the_workload_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        built(Lit, cache=tmp_path, optimizer=None)
    assert messages(error) == [
        "Lit.configure_optimizers: is not called: the recipe sets optimizer, learning rate and schedule "
        '(set the same values in the recipe, and `optimizer = "recipe"` in the workload class)'
    ]
    with pytest.raises(InputError, match=r"Points.optimizer: is 'module' \(\"recipe\" or None\)"):
        built(Lit, cache=tmp_path, optimizer="module")


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any: ...


class Texts(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return {"x": super().__getitem__(index)[0], "text": "a"}


DATASETS = [
    (Stream(), "Points.make_dataset('train'): is a Stream, whose samples have no index"),
    (iter([1]), "Points.make_dataset('train'): is a list_iterator, whose samples have no index"),
    (DataLoader(samples("train")), "Points.make_dataset('train'): is a DataLoader"),
    (Texts(torch.ones(3, 2)), "Points, batch of train: ['text'][0] is a str (tensors only"),
]


@pytest.mark.parametrize(("dataset", "message"), DATASETS)
def test_data_that_cannot_be_resumed_is_rejected(dataset: Any, message: str, tmp_path: Path) -> None:
    def make_dataset(_: Any, split: str) -> Any:
        return dataset if split == "train" else samples(split)

    with pytest.raises(InputError) as error:
        built(Lit, cache=tmp_path, make_dataset=make_dataset)
    assert [each.startswith(message) for each in messages(error)] == [True]


def test_samples_with_another_structure_are_rejected(tmp_path: Path) -> None:
    rows = [{"x": torch.ones(2)}, {"x": torch.ones(2)}, {"y": torch.ones(2)}]
    kind = type("Points", (Points,), {"make_dataset": lambda self, split: rows})
    workload = kind(Points.Settings(name=f"{Points.__module__}:Points"), tmp_path)
    assert list(workload.batch("train", [0, 1])) == ["train['x']"]
    with pytest.raises(InputError, match="batch of train: samples have different structures"):
        workload.batch("train", [2])


def test_names_of_the_loop_are_rejected_as_metrics(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        built(Lit, cache=tmp_path, metrics=("acc", "loss", "lr"))
    assert messages(error) == [
        f"Points.metrics: the step loop logs `{name}` itself (log it by another name)"
        for name in ("loss", "lr")
    ]


def a_step(step: Callable[[Any, Any, Any], Any], base: type[nn.Module], split: Any, cache: Path) -> Any:
    """Run a module's step on two samples."""
    name = {"train": "training_step", "validation": "validation_step"}[split]
    model = built(type("Mine", (base,), {name: step}), cache=cache)
    return model(split, list(samples(split)[:2]), 2)


def log(*arguments: Any, **settings: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda module, batch, _: module.log(*arguments, **settings)


LOGGED = [
    (log("other", 1.0), "self.log('other'): this name is not declared (add it to `metrics` of the workload"),
    (log("lr", 1.0), "self.log('lr'): the step loop logs this name itself"),
    (log("val_acc", "high"), "self.log('val_acc'): is a str (a number or a tensor with one element)"),
    (log("val_acc", torch.ones(3)), "self.log('val_acc'): is a Tensor of the shape [3] (a number or"),
    (log("val_acc", nn.Identity()), "self.log('val_acc'): is a Identity, whose state the step loop does not"),
    (log("val_acc", 1.0, reduce_fx="max"), "self.log('val_acc'): `reduce_fx` cannot be honoured"),
    (log("val_acc", 1.0, rank_zero_only=True), "self.log('val_acc'): `rank_zero_only` cannot be honoured"),
    (log("val_acc", 1.0, logger=False), "self.log('val_acc'): `logger` cannot be honoured"),
    (log("val_acc", 1.0, enable_graph=True), "self.log('val_acc'): `enable_graph` cannot be honoured"),
    (log("val_acc", 1.0, batch_size=0), "self.log('val_acc'): `batch_size` is 0 (a whole number above 0)"),
]


@pytest.mark.parametrize(("step", "message"), LOGGED)
def test_a_value_that_cannot_be_logged_is_rejected(step: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        a_step(step, Lit, "validation", tmp_path)
    assert [each.startswith(message) for each in messages(error)] == [True], messages(error)


def test_logged_values_are_weighted_by_their_batch_size(tmp_path: Path) -> None:
    def step(module: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        module.log("val_acc", 0.5, True, batch_size=6, on_step=True, on_epoch=True)
        module.log("val_acc", torch.tensor([2.0]), sync_dist=True, reduce_fx=torch.mean)
        return torch.tensor(3.0)

    loss, count, sums = a_step(step, Lit, "validation", tmp_path)
    assert (float(loss), count) == (6.0, 2)
    assert sums == {"val_acc": (6 * 0.5 + 2 * 2.0, 8)}


LOSSES = [
    (
        lambda *_: None,
        "train",
        "Mine.training_step: returns NoneType (expected the mean loss of the batch, or",
    ),
    (lambda *_: {"logits": 1}, "train", "Mine.training_step: returns dict (expected the mean loss of the"),
    (lambda *_: torch.ones(2), "train", "Mine.training_step: returns a tensor of the shape [2] (expected a"),
    (lambda *_: None, "validation", "Mine.validation_step: returns NoneType (expected the mean loss of the"),
    (
        lambda module, *_: module.log("val_loss", 1.0) or torch.ones(()),
        "validation",
        "Mine.validation_step: returns a loss and logs `val_loss` too, which is not declared",
    ),
]


@pytest.mark.parametrize(("step", "split", "message"), LOSSES)
def test_a_step_without_a_loss_is_rejected(step: Any, split: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        a_step(step, Lit, split, tmp_path)
    assert [each.startswith(message) for each in messages(error)] == [True], messages(error)


def test_the_use_of_batch_idx_is_rejected_and_passing_it_on_is_not(tmp_path: Path) -> None:
    uses = (lambda i: i % 2, lambda i: f"{i}", lambda i: i == 0, lambda i: [1, 2][i], lambda i: 2 * i, bool)
    for use in uses:
        with pytest.raises(InputError, match="batch_idx: the step loop has no batches of an epoch"):
            a_step(lambda module, batch, index, use=use: use(index), Plain, "train", tmp_path)
    loss, count, _ = a_step(Steps.training_step, Plain, "train", tmp_path)
    assert count == 2
    assert loss.requires_grad


@pytest.mark.parametrize("member", MEMBERS)
def test_the_use_of_a_member_that_needs_a_trainer_is_rejected(member: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        a_step(lambda module, *_: getattr(module, member), Lit, "train", tmp_path)
    assert messages(error) == [
        f"Mine.{member}: the step loop has no Trainer (remove its use from the module)"
    ]


class Uses(Lit):
    """Uses what the loop does not have, in a step that runs late and in a method that it calls."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().validation_step(batch, batch_idx)
        if batch_idx == 0 and self.current_epoch > 10:
            self.show(batch)
        self.log("val_f1", 0.5)
        self.log_dict({"val_acc": 1.0, "lr": 0.1}, rank_zero_only=False)
        return loss

    def show(self, batch: Any) -> None:
        self.logger.experiment.add_images(batch)
        self.log("val_acc", 1.0, reduce_fx="max")

    def predict_step(self, batch: Any) -> Any:
        return self.trainer


def test_what_later_steps_use_is_rejected_before_training(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        built(Uses, cache=tmp_path)
    assert sorted(message.partition(" (")[0] for message in messages(error)) == [
        "Uses.current_epoch: the step loop has no Trainer",
        "Uses.logger: the step loop has no Trainer",
        "batch_idx: the step loop has no batches of an epoch: any number of ranks train the same samples",
        "self.log('lr'): the step loop logs this name itself",
        "self.log('val_acc'): `reduce_fx` cannot be honoured",
        "self.log('val_f1'): this name is not declared",
    ]


def test_a_workload_without_a_module_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Points.make_module: returns NoneType \(a torch.nn.Module\)"):
        built(lambda: None, cache=tmp_path)  # type: ignore[arg-type, return-value]  # the mistake


def test_a_member_of_the_users_own_is_unchanged(tmp_path: Path) -> None:
    module = type("Mine", (Lit,), {"logger": property(lambda self: "own")})
    assert built(module, cache=tmp_path).lightning_module.logger == "own"


def test_a_nested_module_logs_too(tmp_path: Path) -> None:
    class Outer(Lit):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Lit()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.inner.training_step(batch, batch_idx)

    _, _, sums = built(Outer, cache=tmp_path)("train", list(samples("train")[:2]), 2)
    assert sums["train_acc"][1] == 2


def test_the_device_of_a_module_is_that_of_its_weights(tmp_path: Path) -> None:
    model = built(Lit, cache=tmp_path).to("meta")
    assert model.lightning_module.device == torch.device("meta")


class Frozen(Lit):
    """Two ways in which modules keep a part in evaluation mode."""

    def __init__(self) -> None:
        super().__init__(noisy=True)
        self.first, self.second = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
        self.first.eval()

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.second.eval()
        return self


def test_parts_in_evaluation_mode_stay_there_from_the_first_step_on(tmp_path: Path) -> None:
    model = built(Frozen, cache=tmp_path)

    def modes() -> list[bool]:
        inner = model.lightning_module
        return [each.training for each in (inner.first, inner.second, inner.layers[1], inner)]

    assert modes() == [False, False, True, True]
    model.eval()
    assert modes() == [False] * 4
    model.train()
    assert modes() == [False, False, True, True]


def test_a_module_without_a_test_step_is_tested_with_its_validation_step(tmp_path: Path) -> None:
    class NoTest(nn.Module):
        training_step, validation_step, forward = Steps.training_step, Steps.validation_step, Plain.forward

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Linear(3, 2)

    model = built(NoTest, cache=tmp_path, loss_names={"validation": "val_loss", "test": "val_loss"})
    _, count, sums = model("test", list(samples("test")[:4]), 4)
    assert count == 4
    assert set(sums) == {"val_acc", "val_rows"}
