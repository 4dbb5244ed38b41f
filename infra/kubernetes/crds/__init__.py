"""KubeRay's resource definitions, one folder per version. Imports no Pulumi.

Written by `python -m tools.kuberay.crds`; NOTICE describes their origin and changes. They are resources of
their own because Helm installs definitions once and never upgrades them.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from trainfleet.errors import InputError, Problem


def versions() -> tuple[str, ...]:
    """The operator versions with definitions, oldest first."""
    found = [entry.name for entry in files(__name__).iterdir() if entry.is_dir() and entry.name[:1].isdigit()]
    return tuple(sorted(found, key=lambda version: tuple(int(part) for part in version.split("."))))


def definitions(version: str) -> tuple[dict[str, Any], ...]:
    """The CustomResourceDefinitions of one version, sorted by name.

    Raises:
        InputError: no definitions of this version.
    """
    if version not in versions():
        raise InputError(
            "unknown version of the KubeRay operator",
            [
                Problem(
                    "ray.operator",
                    f"this release has no resource definitions of {version}",
                    f"one of {', '.join(versions())}",
                )
            ],
        )
    folder = files(__name__) / version
    return tuple(
        json.loads(entry.read_bytes())
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".json")
    )
