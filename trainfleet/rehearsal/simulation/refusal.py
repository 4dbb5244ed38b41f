"""Why a simulated cloud refuses an operation, and which source says that the real one does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """One reason and its source: a page or a file of the cloud, or an option of this rehearsal."""

    what: str
    source: str

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError(f"a refusal needs a source: {self.what}")

    def __str__(self) -> str:
        return f"{self.what} [{self.source}]"


class RefusedError(Exception):
    """Raised if the cloud refuses an operation because of what else exists."""


class RejectedError(RefusedError):
    """Raised if a rule of the simulated cloud refuses an operation. The text names the source of the rule."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class AlreadyExistsError(RejectedError):
    """Raised if a physical name is taken."""
