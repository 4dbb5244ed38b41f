"""Bad input: what is refused, what is left out, and that each is counted and named.

Used by `preparation`. Easy to get wrong: one torn file must not hide the next, so all are collected before
anything is
refused; and a limit keeps a set that is mostly broken from being trained on as if it were small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainfleet.errors import InputError, Problem

SHOWN = 20
"""So many are named in an error; all are counted."""
NAMED = 1000
"""So many are named in a manifest."""


@dataclass(frozen=True)
class Bad:
    """One file or row that cannot be used: `where` it is and `what` is wrong."""

    where: str
    what: str


class BadRowError(Exception):
    """Raised by a transform for a row that it cannot use; the message says why."""


@dataclass(frozen=True)
class Integrity:
    """What happens to files and rows that cannot be used.

    Attributes:
        mode: `refuse`: the preparation ends, naming them; `quarantine`: they are left out, counted and named.
        limit: with `quarantine`, the largest share of all rows and files that may be left out.
    """

    mode: Literal["refuse", "quarantine"] = "refuse"
    limit: float = 0.01

    def judge(self, bad: Sequence[Bad], good: int) -> None:
        """Let a preparation go on, or end it.

        Raises:
            InputError: something is bad and the mode is `refuse`, or more is bad than the limit allows.
        """
        if not bad:
            return
        problems = [Problem(each.where, each.what) for each in bad[:SHOWN]]
        if len(bad) > SHOWN:
            problems.append(Problem("", f"and {len(bad) - SHOWN} more"))
        if self.mode == "refuse":
            problems.append(
                Problem(
                    "",
                    "mend or remove them",
                    "or leave them out, counted and named, by `integrity: quarantine`",
                )
            )
            raise InputError(f"{len(bad)} of the data's files and rows cannot be used", problems)
        if len(bad) > self.limit * (len(bad) + good):
            share = len(bad) / (len(bad) + good)
            raise InputError(
                f"{len(bad)} of the data's files and rows cannot be used: {share:.1%}, more than the limit of {self.limit:.1%}",
                problems,
            )

    def report(self, bad: Sequence[Bad]) -> dict[str, Any]:
        """What the manifest says about it."""
        return {
            "mode": self.mode,
            "limit": self.limit,
            "count": len(bad),
            "named": [asdict(each) for each in bad[:NAMED]],
        }


def left_out(facts: Mapping[str, Any]) -> str:
    """A sentence about what was left out of the data that run.json's `facts` tell of; empty when nothing was."""
    found = facts.get("data", {}).get("left_out", {})
    if not found.get("count"):
        return ""
    named = "; ".join(f"{each['where']} {each['what']}" for each in found["named"][:3])
    more = f"; and {found['count'] - 3} more in the manifest" if found["count"] > 3 else ""
    return f"{found['count']} of the data's files and rows are left out: {named}{more}"


def bad_from(documents: Iterable[dict[str, str]]) -> list[Bad]:
    """What `asdict` made of them."""
    return [Bad(each["where"], each["what"]) for each in documents]
