"""The one exception tree. Every error a user can cause is a `TrainfleetError`; a traceback means a bug in
Trainfleet.

An error carries problems: what is wrong, where (a path in a file or a spec) and what would be right. All
problems that can be found at once are reported at once. The exit code is part of the class.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One mistake: `where` it is, `what` is wrong, and what `fix` would be right (may be empty)."""

    where: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} ({self.fix})" if self.fix else text


class TrainfleetError(Exception):
    """Raised when a command cannot do what was asked; never for a bug. Exit code 1."""

    exit_code = 1

    def __init__(self, summary: str, problems: Iterable[Problem] = ()) -> None:
        self.summary = summary
        self.problems = tuple(problems)
        super().__init__("\n".join([summary, *(f"  {problem}" for problem in self.problems)]))


class InputError(TrainfleetError):
    """Raised when what the user wrote is wrong (spec, recipe, flag, file). Exit code 2."""

    exit_code = 2


class MissingToolError(TrainfleetError):
    """Raised when the machine lacks something a command needs; the message says what to install.
    Exit code 3.
    """

    exit_code = 3


class Interrupted(TrainfleetError):  # noqa: N818 - not a fault: the user pressed Ctrl-C
    """Raised when Ctrl-C or SIGTERM ended a command after it cleaned up. Exit code 130."""

    exit_code = 130
