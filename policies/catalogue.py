"""Every rule, by theme. Imports no Pulumi."""

from __future__ import annotations

from collections.abc import Mapping

from trainfleet.policies import (
    cost,
    encryption,
    exposure,
    gpu,
    identity,
    kubernetes,
    naming,
    network,
    reliability,
)
from trainfleet.policies.engine.exceptions import EVERYWHERE
from trainfleet.policies.engine.rule import Rule

THEMES: Mapping[str, tuple[str, tuple[Rule, ...]]] = {
    "exposure": ("What is reachable from outside, and by whom.", exposure.RULES),
    "encryption": ("Encryption at rest, and the keys for it.", encryption.RULES),
    "identity": ("Permissions, and how people and workloads authenticate.", identity.RULES),
    "network": ("Traffic inside the platform, and the paths to its stores.", network.RULES),
    "gpu": ("What schedulers, drivers and fabrics require of a GPU pool.", gpu.RULES),
    "cost": ("Limits, idle capacity and budget alerts.", cost.RULES),
    "naming": ("Tags and names that show the platform, the environment and the owner.", naming.RULES),
    "kubernetes": (
        "Pod privileges, image versions, secrets, and the control plane's logs and version.",
        kubernetes.RULES,
    ),
    "reliability": (
        "Recovery from failed zones, failed nodes and human error.",
        reliability.RULES,
    ),
}
"""Theme name to its description and its rules."""
RULES: tuple[Rule, ...] = tuple(rule for _, rules in THEMES.values() for rule in rules)


def theme_of(rule: Rule) -> str:
    """Return the theme that a rule belongs to."""
    return next(theme for theme, (_, rules) in THEMES.items() if rule in rules)


def policy_names() -> tuple[str, ...]:
    """Return every name that an exception accepts: rule names, and the `-everywhere` names of stack rules."""
    return tuple(
        name
        for rule in RULES
        for name in ((rule.name, f"{rule.name}{EVERYWHERE}") if rule.stack else (rule.name,))
    )
