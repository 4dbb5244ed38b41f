"""Finds the project around the current folder, and applies spec overrides to a stack's settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem

SPEC_KEY = "trainfleet:platform"


def project_root() -> Path:
    """Return the nearest parent folder with Pulumi.yaml and stacks; in no project, this package's checkout.

    Raises:
        InputError: no such folder exists, or the project around the current folder has no `stacks`.
    """
    from trainfleet.infra.spec import stack_file

    folder = stack_file.project_root()
    if (folder / "Pulumi.yaml").is_file() and (folder / "stacks").is_dir():
        return folder
    raise InputError(
        "not in a Trainfleet project",
        [
            Problem(
                str(Path.cwd()),
                "no Pulumi.yaml with a stacks folder here or above",
                "cd into the project; rehearse, diff and drift also accept the folder of any Pulumi project",
            )
        ],
    )


def any_project_root() -> Path:
    """Return the nearest parent folder with a Pulumi.yaml, whether or not it has stacks; else `project_root`.

    Raises:
        InputError: no such folder exists.
    """
    here = Path.cwd()
    folders = (folder for folder in (here, *here.parents) if (folder / "Pulumi.yaml").is_file())
    return next(folders, None) or project_root()


def stack_names(root: Path | None = None) -> list[str]:
    """Return the names of the project's stacks."""
    from trainfleet.infra.spec import stack_file

    return stack_file.stack_names(root or project_root())


def stack_settings(stack: str, root: Path, overrides: Sequence[str]) -> dict[str, Any] | None:
    """Validate a stack's spec; return its settings with the overrides applied, or None without overrides.

    Raises:
        InputError: the spec is invalid; lists all problems.
    """
    from trainfleet.infra.spec.load import load_stack

    spec = load_stack(stack, root, overrides)
    if not overrides:
        return None
    document = yaml_limits.load((root / "stacks" / f"Pulumi.{stack}.yaml").read_text())
    document["config"][SPEC_KEY] = spec.model_dump(mode="json")
    return dict(document)
