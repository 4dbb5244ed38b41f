"""Rules that GCP alone has, known before the engine starts. Each has its source in its docstring."""

from __future__ import annotations

from infra.rules.finding import Rule

RULES: tuple[Rule, ...] = ()
