"""Writes the outputs of other stacks into the simulated backend, from which a StackReference reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.accepted import FILE, StackOutputs
from trainfleet.rehearsal.engine.program_hooks import ORGANIZATION, full_name


def given_outputs(row: StackOutputs) -> dict[str, Any]:
    """Return the outputs that a row gives, where no other program can be applied.

    Raises:
        InputError: the row names a program instead.
    """
    if row.outputs is None:
        fix = f"outputs = {{ ... }}, from: trainfleet rehearse {row.program}/ --outputs FILE"
        raise InputError(
            "a diff applies no other programs",
            [Problem(f"{FILE}: stack {row.name}", "has no `outputs`", fix)],
        )
    return row.outputs


def write_stack(backend: Path, name: str, project: str, outputs: dict[str, Any]) -> None:
    """Write a stack that has outputs and no resources; `name` is as in a StackReference of `project`."""
    _, owner, stack = full_name(name, project).split("/")
    urn = f"urn:pulumi:{stack}::{owner}::pulumi:pulumi:Stack::{owner}-{stack}"
    resource = {"urn": urn, "custom": False, "type": "pulumi:pulumi:Stack", "outputs": outputs}
    document = {
        "version": 3,
        "checkpoint": {
            "stack": f"{ORGANIZATION}/{owner}/{stack}",
            "latest": {
                "manifest": {"time": "2026-01-01T00:00:00Z", "magic": "", "version": ""},
                "resources": [resource],
            },
        },
    }
    file = backend / ".pulumi" / "stacks" / owner / f"{stack}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document))
