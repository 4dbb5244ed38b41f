"""What can be trained. A user's workload implements `Workload` and returns `StepOutput`."""

from __future__ import annotations

from pathlib import Path

from trainfleet.training.workloads.base import (
    Outcome,
    RenamedMembers,
    Split,
    StepOutput,
    Workload,
    missing_hooks,
)
from trainfleet.training.workloads.settings import RecipeView, workload_of

__all__ = ["Outcome", "RecipeView", "Split", "StepOutput", "Workload", "make_workload", "missing_hooks"]


def make_workload(recipe: RecipeView, cache: Path) -> Workload:
    """The workload that a recipe names, with its data prepared."""
    workload = workload_of(recipe.workload.name)(recipe.workload, cache)
    RenamedMembers.in_instance(workload)
    return workload
