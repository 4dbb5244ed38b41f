"""What a rule says when the spec breaks it. Rules are plain functions from a spec to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.pydantic_messages import Path


@dataclass(frozen=True)
class Finding:
    """One broken rule: where, what is wrong, what would be right, and which other values the judgement rests
    on.

    A finding that rests on a value which was itself refused is dropped by `trainfleet.infra.spec.load`: it
    would only be a follow-on.
    """

    where: Path
    what: str
    fix: str
    reads: tuple[Path, ...] = ()


Rule = Callable[[PlatformSpec], Iterator[Finding]]
