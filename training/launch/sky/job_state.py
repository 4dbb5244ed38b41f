"""What SkyPilot knows of a job: its log and state, through lost connections and restarts of its server."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from trainfleet.training.launch.sky.event_stream import EventStream
from trainfleet.training.launch.sky.server import local_port
from trainfleet.training.launch.sky.server_leftovers import end_leftovers
from trainfleet.training.launch.sky.skypilot import lines_of

Answer = TypeVar("Answer")
POLL_S = 1.0
RECONNECT_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""The pauses before a log that was interrupted is read again; the last one repeats."""
UNREACHABLE_S = 600.0
"""After this long without an answer the launch stops watching. The run continues."""


class UnreachableError(Exception):
    """SkyPilot did not answer for UNREACHABLE_S."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class JobState:
    """Asks SkyPilot.

    Args:
        sky: the module; given by tests.
        log: takes a line for the launch's log.
        note: shows a line to the user.
        wait: waits for a number of seconds, or until the run is over.
    """

    sky: Any
    log: Callable[[str], Any]
    note: Callable[[str], Any]
    wait: Callable[[float], Any]

    def read_log(self, read: Callable[[], Any]) -> None:
        """Read a log until it ends or is interrupted. Neither means that the job has ended."""
        try:
            read()
        except Exception as error:  # noqa: BLE001 - SkyPilot passes on what its connections raise
            self.log(f"the log was interrupted: {type(error).__name__}: {lines_of(error)[0]}")

    def ended(self, cluster: str, job: int, lost: Callable[[], bool] = lambda: False) -> bool:
        """Whether SkyPilot has seen the end of a job, or of its cluster.

        Args:
            cluster: SkyPilot's name of the cluster.
            job: the job's number.
            lost: whether pods of the cluster are lost. SkyPilot then has no state of the job, and without the
                first pod it never deletes the others by itself.

        Raises:
            UnreachableError: SkyPilot does not answer.
        """

        def ask() -> bool:
            try:
                statuses = self.sky.get(self.sky.job_status(cluster, [job]))
            except Exception as error:
                if type(error).__name__ == "ClusterDoesNotExist":
                    return True
                if type(error).__name__ == "ClusterNotUpError" and lost():
                    self.wait(POLL_S)
                    if lost():
                        return True
                raise
            status = next(iter(statuses.values()), None)
            return status is None or bool(status.is_terminal())

        return self._answer(ask)

    def record(self, job: int) -> Any:
        """SkyPilot's record of a managed job; None if there is none.

        Raises:
            UnreachableError: SkyPilot does not answer.
        """
        return self._answer(lambda: self.now(job))

    def now(self, job: int) -> Any:
        """The same, asked once; raises what SkyPilot raises."""
        from sky import jobs

        found = self.sky.get(jobs.queue_v2(refresh=False, job_ids=[job], fields=None))[0]
        return found[0] if found else None

    def live_jobs(self, *, all_users: bool = False) -> list[Any]:
        """The records of all managed jobs of this user, or of all users, that have not ended."""
        from sky import jobs

        try:
            request = jobs.queue_v2(refresh=False, skip_finished=True, all_users=all_users)
            return list(self.sky.get(request)[0])
        except Exception as error:
            # No managed job was ever submitted to controllers in pods.
            if type(error).__name__ == "ClusterNotUpError":
                return []
            raise

    def job_ids(self, name: str) -> list[int]:
        """The numbers of this user's managed jobs of this name that have not ended."""
        return sorted({each.job_id for each in self.live_jobs() if each.job_name == name})

    def is_live(self, name: str) -> bool:
        """Whether a managed job of this name and user has not ended.

        Raises:
            UnreachableError: SkyPilot does not answer.
        """
        return self._answer(lambda: bool(self.job_ids(name)))

    def controller_log(self, job: int) -> str:
        """The log of a managed job's controller: only it has the reason why a pool was rejected."""
        from sky import jobs

        lines: list[str] = []
        stream = EventStream(lambda _: None, lines.append)
        with contextlib.suppress(Exception):
            jobs.tail_logs(job_id=job, follow=False, controller=True, output_stream=stream)
        stream.finish()
        return "\n".join(lines[-300:])

    def _answer(self, ask: Callable[[], Answer]) -> Answer:
        """Ask until SkyPilot answers: its server or the cluster may restart.

        SkyPilot's client starts the server on this machine again, once nothing of a killed one is left.
        """
        deadline, notified = time.monotonic() + UNREACHABLE_S, False
        while True:
            try:
                return ask()
            except Exception as error:
                reason = lines_of(error)[0]
                if time.monotonic() > deadline:
                    raise UnreachableError(reason) from error
                if not notified:
                    self.note(f"SkyPilot does not answer ({reason}); the run continues; retrying")
                    notified = True
                end_leftovers(local_port(os.environ))
                self.wait(POLL_S)
