"""What a `LightningModule` may define and the step loop does not honour: each is rejected by name before
training.

Source of the names: Lightning-AI/pytorch-lightning, src/lightning/pytorch/core/{hooks,module}.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch import nn

from trainfleet.errors import Problem

LIBRARIES = ("lightning", "pytorch_lightning", "lightning_fabric", "torch")
"""Packages whose own classes define every hook, with defaults that do nothing."""

_IN_STEP = "do this in `training_step` or `validation_step`, or remove it"
_IN_DATASET = "move it to `make_dataset` of the workload"
_IN_INIT = "move it to `__init__` of the module, or to `make_module` of the workload"
_IN_SAMPLES = "move it to the samples of `make_dataset`, to `collate`, or to the steps"
_IN_BUFFERS = "keep the state in buffers: checkpoints have them"
_IN_LOSS = "return the loss from `training_step`: the step loop calls `backward` once per micro batch"
_IN_RECIPE = "remove it: the recipe sets optimizer, learning rate and schedule"

HOOKS: dict[str, str] = {
    **dict.fromkeys(
        [
            *("on_fit_start", "on_fit_end", "on_before_zero_grad", "on_before_backward", "on_after_backward"),
            *("on_before_optimizer_step", "configure_callbacks"),
            *(
                f"on_{phase}_{when}"
                for phase in ("train", "validation", "test")
                for when in ("start", "end", "batch_start", "batch_end", "epoch_start", "epoch_end")
            ),
            *("training_epoch_end", "validation_epoch_end", "test_epoch_end"),
            *("training_step_end", "validation_step_end", "test_step_end"),
            *("on_validation_model_zero_grad", "on_validation_model_eval", "on_validation_model_train"),
            *("on_test_model_eval", "on_test_model_train"),
        ],
        _IN_STEP,
    ),
    **dict.fromkeys(
        ["prepare_data", "train_dataloader", "val_dataloader", "test_dataloader", "teardown"], _IN_DATASET
    ),
    "setup": "move it to `make_dataset` or `make_module` of the workload",
    **dict.fromkeys(["configure_model", "configure_sharded_model", "on_before_optimizer_setup"], _IN_INIT),
    **dict.fromkeys(
        ["transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer"], _IN_SAMPLES
    ),
    **dict.fromkeys(["on_save_checkpoint", "on_load_checkpoint"], _IN_BUFFERS),
    "backward": _IN_LOSS,
    **dict.fromkeys(["optimizer_step", "optimizer_zero_grad", "lr_scheduler_step"], _IN_RECIPE),
    "configure_gradient_clipping": "remove it: the recipe's `optimizer.grad_clip` is the limit",
    **dict.fromkeys(["log", "log_dict"], "rename it: the step loop provides it"),
}
"""Hooks of training, validation and test by name, and what to do instead. Those of prediction are not here:
neither loop calls them while it trains."""

MEMBERS = (
    *("trainer", "logger", "loggers", "current_epoch", "global_step", "global_rank", "local_rank"),
    *("optimizers", "lr_schedulers", "manual_backward", "toggle_optimizer", "untoggle_optimizer"),
    *("clip_gradients", "all_gather", "print"),
)
"""Members of `LightningModule` that need its `Trainer`. Without one, some have a value that is wrong here."""

STEPS: dict[str, tuple[str, ...]] = {
    "train": ("training_step",),
    "validation": ("validation_step",),
    "test": ("test_step", "validation_step"),
}
"""The step of each split: the first that the module defines."""


def of_library(each: type) -> bool:
    """Whether a class belongs to Lightning or torch, not to the user."""
    return each.__module__.partition(".")[0] in LIBRARIES


def of_lightning(module: type, name: str) -> bool:
    """Whether a class has a member from Lightning, and does not define its own."""
    defining = next((each for each in module.__mro__ if name in vars(each)), object)
    return of_library(defining) and not defining.__module__.startswith("torch.")


def no_member(module: type, name: str) -> Problem:
    """The use of a member that needs a Trainer."""
    return Problem(
        f"{module.__qualname__}.{name}", "the step loop has no Trainer", "remove its use from the module"
    )


def no_index() -> Problem:
    """The use of `batch_idx`."""
    what = "the step loop has no batches of an epoch: any number of ranks train the same samples"
    return Problem("batch_idx", what, "remove its use from the step")


def defines(module: nn.Module, name: str) -> bool:
    """Whether the user's part of a module defines a method."""
    return name in vars(module) or any(
        name in vars(each) for each in type(module).__mro__ if each is not object and not of_library(each)
    )


def step_name(module: nn.Module, split: str) -> str | None:
    """The module's step of a split; None if it has none."""
    return next((name for name in STEPS[split] if defines(module, name)), None)


def takes_index(module: nn.Module, step: str) -> bool:
    """Whether a step takes `batch_idx` after the batch, as Lightning decides it."""
    positional, variable = _parameters(module, step)
    return variable or len(positional) > 1


def unsupported(module: nn.Module, optimizer: str | None) -> Iterator[Problem]:
    """Every part of a module that the step loop would not honour.

    Args:
        module: as it was constructed.
        optimizer: `LightningWorkload.optimizer`.
    """
    name = type(module).__qualname__
    for split in STEPS:
        if (step := step_name(module, split)) is None:
            yield Problem(f"{name}.{STEPS[split][-1]}", "is not defined", f"the {split} split needs it")
        elif wrong := _unknown_parameters(module, step):
            what = f"takes {wrong}, which the step loop does not have"
            yield Problem(f"{name}.{step}", what, "(self, batch, batch_idx)")
    for hook, fix in HOOKS.items():
        if defines(module, hook):
            yield Problem(f"{name}.{hook}", "the step loop does not call this hook", fix)
    if not getattr(module, "automatic_optimization", True):
        yield Problem(f"{name}.automatic_optimization", "manual optimization is not supported", _IN_LOSS)
    if defines(module, "configure_optimizers") and optimizer is None:
        what = "is not called: the recipe sets optimizer, learning rate and schedule"
        fix = 'set the same values in the recipe, and `optimizer = "recipe"` in the workload class'
        yield Problem(f"{name}.configure_optimizers", what, fix)


def _unknown_parameters(module: nn.Module, step: str) -> str:
    """Parameters of a step that it must get, besides the batch and its index."""
    positional, _ = _parameters(module, step)
    unknown = [each.name for each in positional[2:] if each.default is each.empty]
    unknown += [each.name for each in positional[:1] if each.name == "dataloader_iter"]
    return ", ".join(f"`{each}`" for each in dict.fromkeys(unknown))


def _parameters(module: nn.Module, step: str) -> tuple[list[inspect.Parameter], bool]:
    """The positional parameters of a step, and whether it takes any number of them."""
    found = list(inspect.signature(getattr(module, step)).parameters.values())
    positional = [each for each in found if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return positional, any(each.kind is each.VAR_POSITIONAL for each in found)
