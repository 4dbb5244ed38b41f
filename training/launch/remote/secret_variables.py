"""The variables of a platform's secrets (`secrets.names` of its spec). No launcher reads a value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
        for variable in (name.upper().replace("-", "_"), LIBRARY_VARIABLES.get(name))
        if variable
    ]
