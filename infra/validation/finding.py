"""The result of a validation rule. A rule is a plain function from a spec to findings; it never raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.pydantic_messages import Path


@dataclass(frozen=True)
class Finding:
    """One violated rule: where, what is wrong, and how to fix it.

    `reads` names the other values that the finding depends on. The loader drops a finding that depends on a
    value which was itself rejected.
    """

    where: Path
    what: str
    fix: str
    reads: tuple[Path, ...] = ()


Rule = Callable[[PlatformSpec], Iterator[Finding]]
