"""Finds what is to be rehearsed: the project around the current folder, and a stack's settings with changes
to
its spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from trainfleet.errors import InputError, Problem

SPEC_KEY = "trainfleet:platform"


def project_root() -> Path:
    """Return the nearest parent folder with Pulumi.yaml and stacks, else the checkout that contains this package.

    Raises:
        InputError: there is neither.
    """
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[2]):
        if (folder / "Pulumi.yaml").is_file() and (folder / "stacks").is_dir():
            return folder
    raise InputError(
        "not in a Trainfleet project",
        [Problem(str(here), "no Pulumi.yaml with a stacks folder here or above", "cd into the project")],
    )


def stack_names(root: Path | None = None) -> list[str]:
    """The stacks of the project."""
    folder = (root or project_root()) / "stacks"
    return sorted(
        path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in folder.glob("Pulumi.*.yaml")
    )


def stack_settings(stack: str, root: Path, overrides: Sequence[str]) -> dict[str, Any] | None:
    """Check a stack's spec; return its settings with the overrides in place, or None when there are none.

    Raises:
        InputError: the spec has mistakes; all of them are named.
    """
    from trainfleet.infra.spec.load import load_stack

    spec = load_stack(stack, root, overrides)
    if not overrides:
        return None
    document = yaml.safe_load((root / "stacks" / f"Pulumi.{stack}.yaml").read_text())
    document["config"][SPEC_KEY] = spec.model_dump(mode="json")
    return dict(document)
