"""What several fields, or a field and a cloud, must say together. One small function per rule, its reason in its docstring."""

from __future__ import annotations

from collections.abc import Iterator

from infra.rules.finding import Finding, Rule
from infra.spec import PlatformSpec

RULES: tuple[Rule, ...] = ()


def broken(spec: PlatformSpec) -> Iterator[Finding]:
    """Every finding of every rule, in the order of the table."""
    for rule in RULES:
        yield from rule(spec)
