"""Checks the JSON documents in inputs: which kind has which check.

A document is text or, where an SDK types it, an object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from trainfleet.rehearsal.simulation.json_documents.api_shapes import modelled
from trainfleet.rehearsal.simulation.json_documents.dashboards import cloudwatch_dashboard, google_dashboard
from trainfleet.rehearsal.simulation.json_documents.ecr_lifecycle import ecr_lifecycle
from trainfleet.rehearsal.simulation.json_documents.findings import Finding, not_an_object, shortened
from trainfleet.rehearsal.simulation.json_documents.google_iam_policies import bindings
from trainfleet.rehearsal.simulation.json_documents.iam_policies import policy
from trainfleet.rehearsal.simulation.json_documents.messaging import (
    event_pattern,
    filter_policy,
    redrive,
    redrive_allow,
    topic_redrive,
)
from trainfleet.rehearsal.simulation.json_documents.state_machines import state_machine
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN


def document_mistakes(value: Any, kind: str) -> list[Finding]:
    """Return the mistakes in a document. `kind` is a key of `KINDS`."""
    if isinstance(value, str):
        if UNKNOWN in value or (kind == "configuration" and not value.lstrip().startswith(("{", "["))):
            return []
        try:
            value = json.loads(value)
        except ValueError as error:
            return [("", f"{shortened(value)} is not JSON: {error}", "write it with json.dumps")]
    return list(KINDS[kind](value))


KINDS: dict[str, Callable[[Any], Iterator[Finding]]] = {
    "identity-policy": lambda value: policy(value, "identity"),
    "trust-policy": lambda value: policy(value, "trust"),
    "resource-policy": lambda value: policy(value, "resource"),
    "ecr-policy": lambda value: policy(value, "repository"),
    "ecr-lifecycle": ecr_lifecycle,
    "event-pattern": event_pattern,
    "redrive": redrive,
    "object": not_an_object,
    "configuration": not_an_object,
    "policy": lambda value: policy(value, "any"),
    "states": state_machine,
    "dashboard": cloudwatch_dashboard,
    "redrive-allow": redrive_allow,
    "topic-redrive": topic_redrive,
    "filter": filter_policy,
    "bindings": bindings,
    "google-dashboard": google_dashboard,
    "ecs-containers": modelled("ecs-containers"),
    "batch-container": modelled("batch-container"),
    "batch-nodes": modelled("batch-nodes"),
}
