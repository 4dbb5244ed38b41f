"""The contexts of the kubeconfig that a run by SkyPilot can use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.launch.sky.messages import SkySpec
from trainfleet.training.launch.sky.pods import context_problem


def usable_contexts(spec: SkySpec, send: Callable[..., Any]) -> list[str]:
    """The contexts that answer, in the order of the plan; all of them if a team's server reaches them.

    The others are removed from the task, so that SkyPilot loses no time with them.

    Args:
        spec: what the launcher wrote; its task is changed.
        send: `send(kind, **fields)`: an event for the launcher.

    Raises:
        TrainfleetError: none can be used.
    """
    # A team's server reaches the clusters, and this machine perhaps not.
    asked = {} if spec.server else spec.contexts
    problems = {
        context: problem
        for context, namespace in asked.items()
        if (problem := context_problem(context, namespace, spec.required.get(context, [])))
    }
    if len(problems) == len(spec.contexts):
        raise TrainfleetError(
            "no context can be used", [Problem(context, why) for context, why in problems.items()]
        )
    for context, why in problems.items():
        send("warning", text=f"{context} is left out: {why}")
    resources = spec.task["resources"]
    if problems and "ordered" in resources:
        resources["ordered"] = [
            each for each in resources["ordered"] if each["infra"].removeprefix("k8s/") not in problems
        ]
    for each in spec.left_out:
        send("note", text=f"not tried: {each}")
    return [context for context in spec.contexts if context not in problems]
