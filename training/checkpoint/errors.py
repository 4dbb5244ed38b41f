"""The errors of checkpoints: what failed, and the last good checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.stores import StoreUnavailableError


class CheckpointError(TrainfleetError):
    """Raised when a checkpoint cannot be saved, or none can be read; names the last good one."""


class UnavailableStoreError(CheckpointError, StoreUnavailableError):
    """Raised when a checkpoint cannot be saved because the store does not respond for now."""


def explain_read(place: str, action: Callable[[], Any]) -> Any:
    """Read the checkpoint at a folder or URL; an unexpected error becomes a `CheckpointError`."""
    try:
        return action()
    except TrainfleetError:
        raise
    except Exception as error:
        text = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError("cannot read a checkpoint", [Problem(place, text)]) from error


def save_error(step: int, error: TrainfleetError, store_url: str, last_good: str | None) -> CheckpointError:
    """The error of a save that failed, with the place of the last good checkpoint, if there is one."""
    what = f"the last good checkpoint is {last_good}" if last_good else "there is no checkpoint yet"
    fix = "fix the cause, then run the same command again to resume"
    problems = error.problems or (Problem(store_url, error.summary),)
    summary = f"cannot save the checkpoint of step {step}"
    kind = UnavailableStoreError if isinstance(error, StoreUnavailableError) else CheckpointError
    return kind(summary, [*problems, Problem("", what, fix)])


def as_trainfleet_error(action: Callable[[], Any]) -> Any:
    """Convert any error to a TrainfleetError, which is passed to the other ranks."""
    try:
        return action()
    except TrainfleetError:
        raise
    except Exception as error:
        raise TrainfleetError(f"{type(error).__name__}: {error}") from error
