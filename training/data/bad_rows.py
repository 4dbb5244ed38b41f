"""Rejects or skips files and rows that cannot be used; counts and names each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


@dataclass(frozen=True)
class ChangedRow:
    """A row that is used, but not as it is: its `sample`, `where` the row is and `what` was changed."""

    sample: Mapping[str, Any]
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

    def report(self, bad: Sequence[BadInput], changed: Sequence[BadInput] = ()) -> dict[str, Any]:
        """The manifest's entry about bad inputs, and about rows that are used but were changed."""
        return {
            "mode": self.mode,
            "limit": self.limit,
            **_counted(bad),
            **({"changed": _counted(changed)} if changed else {}),
        }


def describe_left_out(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Event and sentence about inputs that were skipped, and about those that were changed, from the data
    facts of run.json.
    """
    data = facts.get("data", {})
    for event, key, how in (
        ("quarantined", "left_out", "of the data's files and rows are left out"),
        ("changed_rows", "changed", "of the data's rows are used in part"),
    ):
        found = data.get(key, {})
        if found.get("count"):
            named = "; ".join(f"{each['where']} {each['what']}" for each in found["named"][:3])
            more = f"; and {found['count'] - 3} more in the manifest" if found["count"] > 3 else ""
            yield event, f"{found['count']} {how}: {named}{more}"


def _counted(rows: Sequence[BadInput]) -> dict[str, Any]:
    return {"count": len(rows), "named": [asdict(each) for each in rows[:MAX_IN_MANIFEST]]}


def bad_from(documents: Iterable[dict[str, str]]) -> list[BadInput]:
    """Inverse of `asdict` for each entry."""
    return [BadInput(each["where"], each["what"]) for each in documents]
