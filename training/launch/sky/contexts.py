"""The contexts of the kubeconfig that a run by SkyPilot can use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.launch.sky.messages import SkySpec
from trainfleet.training.launch.sky.pods import context_problem


def usable_contexts(spec: SkySpec, send: Callable[..., Any]) -> list[str]:
    """The contexts of the task that answer, in the order of the plan; all of them if a team's server reaches
    them.

    The others are removed from the task, so that SkyPilot loses no time with them.

    Args:
        spec: what the launcher wrote; its task is changed.
        send: `send(kind, **fields)`: an event for the launcher.

    Raises:
        TrainfleetError: none can be used.
    """
    resources = spec.task["resources"]
    alternatives = resources.get("ordered", [resources])
    # Not every context of the plan: some may have only pools that need another number of pods.
    tried = {each["infra"].removeprefix("k8s/") for each in alternatives}
    contexts = [context for context in spec.contexts if context in tried]
    # A team's server reaches the clusters, and this machine perhaps not.
    asked = [] if spec.server else contexts
    problems = {
        context: problem
        for context in asked
        if (problem := context_problem(context, spec.contexts[context], spec.required.get(context, [])))
    }
    if len(problems) == len(contexts):
        raise TrainfleetError(
            "no context can be used", [Problem(context, why) for context, why in problems.items()]
        )
    for context, why in problems.items():
        send("warning", text=f"{context} is left out: {why}")
    if problems:
        resources["ordered"] = [
            each for each in alternatives if each["infra"].removeprefix("k8s/") not in problems
        ]
    for each in spec.left_out:
        send("note", text=f"not tried: {each}")
    return [context for context in contexts if context not in problems]
