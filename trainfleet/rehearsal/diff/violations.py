"""Which policy violations of the head are new, and which only the base's policies report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trainfleet.rehearsal.diff.model import Failing
from trainfleet.rehearsal.engine.engine_cli import Violation


def with_base(head: list[Violation], base: Iterable[Violation]) -> list[Violation]:
    """Return the head's violations with those that only the base's pack reports."""
    own = {_key(each) for each in head}
    return [
        *head,
        *(
            replace(each, message=f"{each.message}\nOnly the base's policies report it.")
            for each in base
            if _key(each) not in own
        ),
    ]


def newly_failing(before: Iterable[Violation], after: Iterable[Violation]) -> tuple[Failing, ...]:
    """Return the policy violations of the head that the base does not have."""
    old, new = _failing(before), _failing(after)
    return tuple(failing for key, failing in sorted(new.items()) if key not in old)


def _failing(violations: Iterable[Violation]) -> dict[tuple[str, str], Failing]:
    return {
        (key := _key(violation)): Failing(*key, violation.message, violation.level)
        for violation in violations
    }


def _key(violation: Violation) -> tuple[str, str]:
    """Return the policy and the resource."""
    urn = violation.urn
    return violation.policy, urn.rsplit("::", 1)[-1] if urn else violation.message.partition(":")[0]
