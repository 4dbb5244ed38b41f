"""Which failures of workers `scaling.restarts` counts: those without a later checkpoint.

A run of months on many machines fails more often than any number for its whole life. What must end is a run
that fails again and again at the same place, so a checkpoint that is committed after a failure refills the
budget.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainfleet.errors import TrainfleetError
from trainfleet.training.stores import RetryPolicy, open_store

READ_S = 20.0
"""How long to wait for the store. Without an answer, the failure counts as one without a later checkpoint."""


@dataclass
class Progress:
    """Whether a run has committed a later checkpoint. `url`: the folder or URL of its checkpoints."""

    url: str
    newest: int | None = None

    def made(self) -> bool:
        """Whether there is a later checkpoint than at the last call; False at the first one.

        A store that does not answer counts as one without a later checkpoint.
        """
        found: list[int] = []

        def read() -> None:
            with contextlib.suppress(TrainfleetError):
                found.append(newest_step(self.url))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(READ_S)
        if not found:
            return False
        before, self.newest = self.newest, max(found[0], -1 if self.newest is None else self.newest)
        return before is not None and found[0] > before


def newest_step(url: str) -> int:
    """The step of the newest checkpoint in a folder of checkpoints; -1 if it has none.

    Raises:
        StoreError: the store does not respond.
    """
    from trainfleet.training.checkpoint.files import committed
    from trainfleet.training.checkpoint.retention import step_of

    store = open_store(url, RetryPolicy(attempts=2, stall_s=READ_S))
    return max((step_of(name) for name in committed(store)), default=-1)


@dataclass
class RestartBudget:
    """Counts the failures of a launch without a later checkpoint.

    Attributes:
        allowed: `scaling.restarts`.
        progress: whether there is a later checkpoint since the last call.
        failures: since the last checkpoint.
    """

    allowed: int
    progress: Callable[[], bool]
    failures: int = field(default=0, init=False)

    def failed(self) -> bool:
        """Count a failure; whether the workers may restart."""
        self.failures = 1 if self.progress() else self.failures + 1
        return self.failures <= self.allowed


def exhausted(allowed: int) -> str:
    """The sentence for a run that has used up its restarts; empty for one that has none."""
    if not allowed:
        return ""
    return (
        f"the workers failed {allowed + 1} times without a later checkpoint, "
        f"and scaling.restarts allows {allowed} restart{'s' if allowed > 1 else ''}"
    )


def of_worker(error: Exception) -> Exception:
    """A worker's failure as one, if Ray Train reports it as its controller's, which would end the run.

    Ray kills a worker that uses too much memory. If that happens while the worker starts, its
    OutOfMemoryError is not a RayActorError, and reaches the controller (`_start_impl` of ray.train 2.60's
    worker group).
    """
    from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError
    from ray.train import ControllerError, WorkerGroupError

    if isinstance(error, ControllerError):
        reason = error.controller_failure
        if isinstance(reason, NodeDiedError | OutOfMemoryError | WorkerCrashedError):
            return WorkerGroupError(str(reason), {0: reason})
    return error


def reason_of(error: Exception) -> str:
    """The line of Ray's error that says what happened. Ray ends that of a lack of memory with advice."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    of_memory = (each for each in lines if "Memory on the node" in each or "low on memory" in each)
    return next(of_memory, lines[-1])


class RefilledPolicy:
    """Ray Train's policy for failures, which starts to count again after each later checkpoint.

    It runs in Ray Train's controller. Preemptions and failures of the controller keep their own limits, by
    default none (`ray.train.FailureConfig`).
    """

    def __init__(self, policy: Any, progress: Callable[[], bool]) -> None:
        self._unused, self._policy, self._progress = policy, copy.deepcopy(policy), progress

    def make_decision(self, training_failed_error: Exception) -> Any:
        """Ray Train's decision: restart, or end with the error."""
        if self._progress():
            self._policy = copy.deepcopy(self._unused)
        return self._policy.make_decision(training_failed_error=of_worker(training_failed_error))
