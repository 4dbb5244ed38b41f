"""Low-rank adapters on a frozen model of transformers, by peft (Hu et al. 2021), and weights that are not
trained.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.settings import LoraSettings


def with_lora(
    inner: Any,
    settings: LoraSettings,
    *,
    task: str | None = None,
    head: Sequence[str] = (),
    train_head: bool = True,
) -> Any:
    """The model with adapters; its own weights are frozen.

    Args:
        inner: a model of transformers.
        settings: rank, dropout and targets of the adapters.
        task: peft's name of the task, such as CAUSAL_LM.
        head: modules by name that get no adapter.
        train_head: whether these are trained as a whole, such as a new classifier.

    Raises:
        InputError: peft is not installed, or the model has none of the targets.
    """
    try:
        import peft as package
    except ImportError as error:
        raise InputError(
            "peft is not installed",
            [Problem("workload.model.lora", "requires peft", "pip install trainfleet[hf]")],
        ) from error
    peft: Any = package
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.targets) or "all-linear",
        exclude_modules=[
            name
            for name, _ in inner.named_modules()
            if any(f"{name}.".startswith(f"{each}.") for each in head)
        ]
        or None,
        task_type=task,
    )
    names = sorted(
        {name.rpartition(".")[2] for name, part in inner.named_modules() if isinstance(part, nn.Linear)}
    )
    heads = [inner.get_submodule(name) for name in head]
    try:
        found = peft.get_peft_model(inner, config)
    except ValueError as error:
        what = f"{', '.join(settings.targets) or 'all linear layers'}: the model has {', '.join(names)}"
        raise InputError(
            "LoRA finds none of its targets",
            [Problem("workload.model.lora.targets", what, "use names of linear layers")],
        ) from error
    for part in heads if train_head else ():
        part.requires_grad_(True)
    return found


def keep_frozen_in(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert the matrices that are not trained, in place. Norms, biases and buffers are small, and stay as
    they are.
    """
    for parameter in model.parameters():
        if not parameter.requires_grad and parameter.ndim > 1 and parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return model


def merged(inner: Any) -> Any:
    """A copy with its adapters merged into its weights; the model itself if it has none."""
    return copy.deepcopy(inner).merge_and_unload() if hasattr(inner, "merge_and_unload") else inner
