"""Rejects or skips files and rows that cannot be used; counts and names each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainfleet.errors import InputError, Problem

MAX_IN_ERROR = 20
MAX_IN_MANIFEST = 1000
"""Maximum number of entries named; all are counted."""


@dataclass(frozen=True)
class BadInput:
    """A file or row that cannot be used: `where` it is and `what` is wrong."""

    where: str
    what: str


class BadRowError(Exception):
    """Raised by a transform for a row that it cannot use; the message is the reason."""


@dataclass(frozen=True)
class Integrity:
    """Policy for files and rows that cannot be used.

    Attributes:
        mode: `refuse` fails the preparation and names them; `quarantine` skips, counts and names them.
        limit: with `quarantine`, the largest share of all rows and files that may be skipped.
    """

    mode: Literal["refuse", "quarantine"] = "refuse"
    limit: float = 0.01

    def check(self, bad: Sequence[BadInput], good: int) -> None:
        """Fail a preparation that this policy does not allow.

        Raises:
            InputError: there are bad inputs and the mode is `refuse`, or there are more than the limit
                allows.
        """
        if not bad:
            return
        problems = [Problem(each.where, each.what) for each in bad[:MAX_IN_ERROR]]
        if len(bad) > MAX_IN_ERROR:
            problems.append(Problem("", f"and {len(bad) - MAX_IN_ERROR} more"))
        if self.mode == "refuse":
            problems.append(
                Problem(
                    "",
                    "repair or remove them",
                    "or skip them with `integrity: quarantine`, which counts and names them",
                )
            )
            raise InputError(f"{len(bad)} of the data's files and rows cannot be used", problems)
        if len(bad) > self.limit * (len(bad) + good):
            share = len(bad) / (len(bad) + good)
            limit = f"more than the limit of {self.limit:.1%}"
            raise InputError(
                f"{len(bad)} of the data's files and rows cannot be used: {share:.1%}, {limit}", problems
            )

    def report(self, bad: Sequence[BadInput]) -> dict[str, Any]:
        """The manifest's entry about bad inputs."""
        return {
            "mode": self.mode,
            "limit": self.limit,
            "count": len(bad),
            "named": [asdict(each) for each in bad[:MAX_IN_MANIFEST]],
        }


def describe_left_out(facts: Mapping[str, Any]) -> str:
    """A sentence about skipped inputs from the data facts of run.json; empty if there are none."""
    found = facts.get("data", {}).get("left_out", {})
    if not found.get("count"):
        return ""
    named = "; ".join(f"{each['where']} {each['what']}" for each in found["named"][:3])
    more = f"; and {found['count'] - 3} more in the manifest" if found["count"] > 3 else ""
    return f"{found['count']} of the data's files and rows are left out: {named}{more}"


def bad_from(documents: Iterable[dict[str, str]]) -> list[BadInput]:
    """Inverse of `asdict` for each entry."""
    return [BadInput(each["where"], each["what"]) for each in documents]
