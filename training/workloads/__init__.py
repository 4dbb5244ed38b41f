"""What can be trained. A user's workload implements `Workload` and returns `StepOutput`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainfleet.training.workloads.base import (
    Outcome,
    Precision,
    RenamedMembers,
    Split,
    StepOutput,
    Workload,
    defining_class,
    missing_hooks,
)
from trainfleet.training.workloads.settings import RecipeView, workload_of

__all__ = [
    "ASSETS",
    "Outcome",
    "Precision",
    "RecipeView",
    "Split",
    "StepOutput",
    "Workload",
    "inference_workload",
    "make_workload",
    "missing_hooks",
]
ASSETS = "assets"
"""Where a checkpoint's shared values, a published folder and its provenance have a workload's assets."""


def make_workload(recipe: RecipeView, cache: Path) -> Workload:
    """The workload that a recipe names, with its data prepared."""
    workload = workload_of(recipe.workload.name)(recipe.workload, cache)
    RenamedMembers.in_instance(workload)
    return workload


def inference_workload(
    recipe: RecipeView, assets: Mapping[str, bytes] | None, folder: Path | None = None
) -> Workload | None:
    """The workload that a recipe names, without its data; None if that needs the data.

    Args:
        recipe: of the trained model.
        assets: what `Workload.assets` returned in the training; None if that version did not store it.
        folder: the published folder, if the model is one.
    """
    found: Any = workload_of(recipe.workload.name)
    if assets is None or defining_class(found, "for_inference") is Workload:
        return None
    workload: Workload = found.for_inference(recipe.workload, assets, folder)
    RenamedMembers.in_instance(workload)
    return workload
