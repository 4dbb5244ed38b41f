"""The contexts that a run on SkyPilot tries: those of its task, which has one number of pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_sky import FakeSky, driven
from tests.training.launch.saved_platforms import FOLDER, platforms
from tests.training.launch.sky_tasks import resolved
from trainfleet.errors import TrainfleetError
from trainfleet.training.launch.platform_outputs import NamedPlatform
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky import contexts
from trainfleet.training.launch.sky.launcher import Sky
from trainfleet.training.recipe.load import load_recipe

NEAR = {"infra": "k8s/near"}


@pytest.mark.parametrize("resources", [NEAR, {"ordered": [NEAR, NEAR | {"memory": 5}]}], ids=["one", "two"])
def test_nothing_starts_if_only_a_context_without_an_alternative_answers(
    resources: dict[str, Any], reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SkyPilot would start a task without alternatives with its own image, on any cloud."""
    monkeypatch.setattr(
        contexts,
        "context_problem",
        lambda context, namespace, required: "it is off" if context == "near" else None,
    )
    sky = FakeSky()
    with pytest.raises(TrainfleetError, match="no context can be used") as raised:
        driven(reported, sky, task={"resources": resources, "run": "true"}).run()
    assert [each.where for each in raised.value.problems] == ["near"]
    assert sky.calls == []


def test_a_launch_tries_the_contexts_of_its_task(tmp_path: Path) -> None:
    stacks = platforms("aws-prod", "aws-dev")
    target = Target(
        Request("lm-1b", on="sky"),
        tuple(NamedPlatform(each, FOLDER / f"{name}.json") for name, each in stacks),
        tmp_path,
    )
    recipe = load_recipe("lm-1b", ["storage=s3://bucket/runs"])
    run = resolved(recipe, target)
    resources = run.task["resources"]
    tried = {each["infra"].removeprefix("k8s/") for each in resources.get("ordered", [resources])}
    assert len({each.context for each in run.plan.possible}) > len(tried)
    assert Sky().place(recipe, target)["contexts"].keys() == tried
