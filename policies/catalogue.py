"""Every rule, by theme. Read by the pack, by `trainfleet policies` and by its document. Imports no Pulumi."""

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
    "exposure": ("What answers to whom from outside.", exposure.RULES),
    "encryption": ("Encryption at rest, and who holds the keys.", encryption.RULES),
    "identity": ("Who may do what, and how they show who they are.", identity.RULES),
    "network": ("What may talk inside the platform, and by which way stores are reached.", network.RULES),
    "gpu": ("What schedulers, drivers and fabrics need of a GPU pool.", gpu.RULES),
    "cost": ("Nothing without a limit, nothing idle, nobody surprised.", cost.RULES),
    "naming": ("Whose it is, and which platform and environment it belongs to.", naming.RULES),
    "kubernetes": (
        "What pods may do, what they are made of, and what the control plane runs on.",
        kubernetes.RULES,
    ),
    "reliability": (
        "What is lost when a zone, a node or a person fails, and whether it comes back.",
        reliability.RULES,
    ),
}
"""By name: what the theme is about, in a sentence, and its rules."""
RULES: tuple[Rule, ...] = tuple(rule for _, rules in THEMES.values() for rule in rules)


def theme_of(rule: Rule) -> str:
    """The theme that a rule belongs to."""
    return next(theme for theme, (_, rules) in THEMES.items() if rule in rules)


def policy_names() -> tuple[str, ...]:
    """What an exception may name: the rules, and the second name of those that also check a whole stack."""
    return tuple(
        name
        for rule in RULES
        for name in ((rule.name, f"{rule.name}{EVERYWHERE}") if rule.stack else (rule.name,))
    )
