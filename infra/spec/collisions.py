"""Find another stack file with the same physical names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.spec.stack_file import PLATFORM_KEY, StackFile, read_stack_file, shown_path

IDENTIFYING = ("name", "cloud", "region", "account", "kubernetes")
"""Fields that make physical names unique."""


def same_names(file: StackFile, spec: PlatformSpec, where: str) -> list[Problem]:
    """Other stacks with the same name in the same account and region, or on the same cluster. `where`: the
    place of this platform's name.
    """
    own = _identity(spec.model_dump(mode="json"))
    problems = []
    for other in sorted(file.path.parent.glob("Pulumi.?*.yaml")):
        if other.resolve() == file.path.resolve():
            continue
        try:
            config = read_stack_file(other).document.get("config")
        except InputError:
            continue  # reported when that stack is checked
        platform = config.get(PLATFORM_KEY) if isinstance(config, dict) else None
        if isinstance(platform, Mapping) and _identity(platform) == own:
            what = (
                f"`{spec.name}` is also the platform of {shown_path(other)}, "
                "and both would have the same cluster, keys and names"
            )
            problems.append(Problem(f"{where} name", what, "another name, or another region or account"))
    return problems


def _identity(platform: Mapping[str, Any]) -> tuple[str, ...]:
    kubernetes = platform.get("kubernetes")
    cluster = kubernetes if isinstance(kubernetes, Mapping) else {}
    parts = [platform.get(key) for key in ("cloud", "account", "region", "name")] + [
        cluster.get(key) for key in ("context", "kubeconfig")
    ]
    return tuple(str(part or "") for part in parts)
