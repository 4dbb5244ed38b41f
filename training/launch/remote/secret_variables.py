"""The variables of a platform's secrets (`secrets.names` of its spec). No launcher reads a value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from trainfleet.errors import Problem
from trainfleet.training.notifications.delivery import variables
from trainfleet.training.recipe.schema import Notifications

LIBRARY_VARIABLES = {
    "wandb-key": "WANDB_API_KEY",
    "mlflow-token": "MLFLOW_TRACKING_TOKEN",
    "mlflow-username": "MLFLOW_TRACKING_USERNAME",
    "mlflow-password": "MLFLOW_TRACKING_PASSWORD",
}
"""By name of the secret: the variable that a library reads, where the name in capitals is another one
(docs.wandb.ai and mlflow.org, environment variables). `hf-token` is HF_TOKEN.
"""


def secret_variables(secrets: Iterable[str]) -> list[dict[str, Any]]:
    """The variables of secrets: each name in capitals, and the variable of a library that has another name.

    A secret without a value is tolerated: External Secrets may not have copied it yet.
    """
    return [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": "value", "optional": True}}}
        for name in secrets
        for variable in _variables_of(name)
    ]


def unset(
    config: Notifications,
    platform: Iterable[str],
    passed: Iterable[str] = (),
    *,
    unknown: bool = False,
    fix: str,
) -> list[Problem]:
    """The variables of a recipe's notifications that its processes would not have.

    Args:
        config: names the variables.
        platform: the platform's secrets.
        passed: variables that the launch passes on (`--secret`).
        unknown: whether the launch adds others, such as those of a Secret (`--from-secret`).
        fix: how a launch of this kind gets one.
    """
    if unknown:
        return []
    known = {*passed, *(variable for name in platform for variable in _variables_of(name))}
    return [
        Problem(key, f"the run's processes do not have the variable {name}", fix)
        for key, name in variables(config).items()
        if name not in known
    ]


def _variables_of(name: str) -> Iterator[str]:
    yield name.upper().replace("-", "_")
    if name in LIBRARY_VARIABLES:
        yield LIBRARY_VARIABLES[name]
