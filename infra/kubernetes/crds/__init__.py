"""KubeRay's resource definitions, one folder per version. No Pulumi import: the spec's rules read
`versions()` too.

Written by `python -m tools.kuberay.crds`; where they come from and what was changed stands in NOTICE. They
are installed
as resources of their own because Helm installs definitions once and never upgrades them.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from trainfleet.errors import InputError, Problem


def versions() -> tuple[str, ...]:
    """The operator versions whose definitions are here, oldest first."""
    found = [entry.name for entry in files(__name__).iterdir() if entry.is_dir() and entry.name[:1].isdigit()]
    return tuple(sorted(found, key=lambda version: tuple(int(part) for part in version.split("."))))


def definitions(version: str) -> tuple[dict[str, Any], ...]:
    """The CustomResourceDefinitions of one version, sorted by name.

    Raises:
        InputError: no definitions of this version are here.
    """
    if version not in versions():
        raise InputError(
            "the KubeRay operator's version is not known",
            [
                Problem(
                    "ray.operator",
                    f"no resource definitions of {version} are here",
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
