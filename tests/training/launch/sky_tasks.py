"""Tasks of SkyPilot for the tests of `--on sky`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.training.launch.saved_platforms import platforms
from trainfleet.training.launch.request import Target
from trainfleet.training.launch.sky.launcher import Sky
from trainfleet.training.launch.sky.plan import PlanOptions, make_plan
from trainfleet.training.launch.sky.run_spec import RunSpec, resolve
from trainfleet.training.launch.sky.task import (
    TaskOptions,
    task_document,
)
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe

TOKEN = "planted-token"


def recipe(*overrides: str, name: str = "lm-1b") -> Recipe:
    return load_recipe(name, [*overrides, "storage=s3://runs"])


def document(
    found: Recipe,
    *stacks: str,
    managed: bool = False,
    patches: tuple[dict[str, Any], ...] = (),
    cluster: str | None = None,
    variables: Mapping[str, str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    plan = make_plan(found, platforms(*stacks), PlanOptions(**options))
    settings = TaskOptions(
        found.name, managed, TOKEN, settings=variables or {}, patches=patches, cluster=cluster
    )
    return task_document(found, plan.possible, dict(platforms(*stacks)), settings)


def resolved(found: Recipe, target: Target, env: Mapping[str, str] | None = None) -> RunSpec:
    return resolve(found, target, Sky().options(target), env or {})
