"""How SkyPilot gets a run's task, and how it is taken back.

The task runs on a cluster of its own, as a managed job, or on a cluster that outlives it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.launch.sky.job_state import JobState
from trainfleet.training.launch.sky.kept_cluster import fitting, misfits
from trainfleet.training.launch.sky.messages import SkySpec
from trainfleet.training.launch.sky.options import IDLE_MINUTES
from trainfleet.training.stores.lease import IN_PROGRESS

IDLE_AFTER_RUN = 5
"""Minutes without a task after which SkyPilot deletes the pods of a run."""
CANCELING = "canceling the job"
FIRST_JOB = 1
"""SkyPilot counts the jobs of each cluster from it."""


class SetupError(TrainfleetError):
    """SkyPilot's setup failed in a pod, so the run has not begun."""


@dataclass
class Submission(ABC):
    """One task, and SkyPilot's client."""

    spec: SkySpec
    sky: Any
    state: JobState
    note: Callable[[str], Any]

    @abstractmethod
    def require_free(self) -> None:
        """Check that no other run has the name or the cluster.

        Raises:
            InputError: one has, or the cluster does not fit the run.
        """

    @abstractmethod
    def submit(self, parse: Callable[[dict[str, Any]], Any]) -> Any:
        """Hand the task over; the request. `parse` makes SkyPilot's task of a document."""

    def job_of(self, answer: Any) -> int:
        """The job's number in the answer to the request."""
        return int(answer[0])

    @property
    def deletion(self) -> str:
        """What `delete` does, for the display."""
        return "taking the pods down"

    @abstractmethod
    def delete(self, job: int | None) -> Any:
        """Request the deletion of what was started; the request."""

    def _taken(self, record: Any, job: int | None = None) -> InputError:
        fix = f"wait for it, or use --run NAME; to end it: {self.spec.end_command(job)}"
        user = getattr(record, "user_name", None)  # SkyPilot does not say it of managed jobs
        what = "SkyPilot has a run of this name" + (f", of the user {user}" if user else "")
        return InputError(IN_PROGRESS, [Problem(self.spec.cluster, what, fix)])


@dataclass
class OwnCluster(Submission):
    """A SkyPilot cluster that is deleted after the run."""

    joined: int | None = None
    """This run's job, if another launch has created the cluster."""

    def require_free(self) -> None:
        """Two launches of one name would share a cluster, also those of two users of a team's server."""
        request = self.sky.status(cluster_names=[self.spec.cluster], all_users=True)
        if found := [each for each in self.sky.get(request) if each is not None]:
            raise self._taken(found[0])

    def submit(self, parse: Callable[[dict[str, Any]], Any]) -> Any:
        return self.sky.launch(
            parse(self.spec.task),
            cluster_name=self.spec.cluster,
            idle_minutes_to_autostop=IDLE_AFTER_RUN,
            down=True,
        )

    def job_of(self, answer: Any) -> int:
        """The job's number. Of two launches that find the name free, one creates the cluster.

        Raises:
            InputError: the cluster is that of another launch.
        """
        job = super().job_of(answer)
        if job != FIRST_JOB:
            self.joined = job
            raise self._taken(None)
        return job

    @property
    def deletion(self) -> str:
        return super().deletion if self.joined is None else CANCELING

    def delete(self, job: int | None) -> Any:  # noqa: ARG002 - the whole cluster
        if self.joined is not None:
            return self.sky.cancel(self.spec.cluster, job_ids=[self.joined])
        return self.sky.down(self.spec.cluster)


class ManagedJob(Submission):
    """A job whose controller replaces lost pods."""

    def require_free(self) -> None:
        for record in self.state.live_jobs(all_users=True):
            if record.job_name == self.spec.cluster:
                raise self._taken(record, record.job_id)

    def submit(self, parse: Callable[[dict[str, Any]], Any]) -> Any:
        from sky import jobs

        return jobs.launch(parse(self.spec.task), name=self.spec.cluster)

    def job_of(self, answer: Any) -> int:
        return int(answer[0][0])

    def delete(self, job: int | None) -> Any:
        """Cancel the job by its number: SkyPilot looks up a name among the jobs of all users."""
        from sky import jobs

        # Without a number, the request was canceled, perhaps after it had queued the job.
        found = self.state.job_ids(self.spec.cluster) if job is None else [job]
        return jobs.cancel(job_ids=found) if found else None


@dataclass
class KeptCluster(Submission):
    """A SkyPilot cluster that the first run creates, and that later runs use one after the other."""

    idle: Callable[[int], bool] = lambda _: False
    """Whether that many pods of the cluster exist and run no task, as far as their Kubernetes knows."""
    record: Any = None
    """SkyPilot's record of the cluster, if it is up."""
    existed: bool = False
    """Whether SkyPilot had the cluster before this run, up or not: another launch may be creating it."""

    def require_free(self) -> None:
        name = self.spec.cluster
        (record,) = self._records() or [None]
        # SkyPilot asks the pods through its own Ray, which takes 7 to 10 s; Kubernetes knows as much in one.
        idle = record is not None and record.status.value == "UP" and self.idle(self.spec.task["num_nodes"])
        queue = None if idle else self.sky.queue(name, skip_finished=True, all_users=True)
        if not idle:
            # AUTO asks for the pods of clusters with a limit of idle time, which may have been deleted since.
            (record,) = self._records(self.sky.StatusRefreshMode.AUTO) or [None]
        self.existed = record is not None
        if record is None or record.status.value != "UP":
            return
        if problems := misfits(record, self.spec):
            raise InputError(f"the run does not fit the cluster {name}", problems)
        if live := [] if queue is None else self.sky.get(queue):
            what = f"runs {live[0].job_name} as job {live[0].job_id}; it takes one run at a time"
            fix = f"wait for it, or name another --cluster; to end it: sky cancel {name} {live[0].job_id}"
            raise InputError("the cluster is in use", [Problem(name, what, fix)])
        self.record = record

    def _records(self, *refresh: Any) -> list[Any]:
        """SkyPilot's records of the cluster, one at most; as it last saw it unless `refresh` is given."""
        given = {"refresh": refresh[0]} if refresh else {}
        request = self.sky.status(cluster_names=[self.spec.cluster], all_users=True, **given)
        return [each for each in self.sky.get(request) if each is not None]

    def submit(self, parse: Callable[[dict[str, Any]], Any]) -> Any:
        name, idle = self.spec.cluster, self.spec.idle_minutes
        if self.record is None:
            idle = IDLE_MINUTES if idle is None else idle
            self.note(f"creating the cluster {name}, {_stays(name, idle)}")
            return self.sky.launch(
                parse(self.spec.task), cluster_name=name, idle_minutes_to_autostop=idle, down=True
            )
        if idle is not None and idle != self.record.autostop:
            self.sky.get(self.sky.autostop(name, idle, down=True))
        self.note(f"on the cluster {name}, {_stays(name, self.record.autostop if idle is None else idle)}")
        return self.sky.exec(parse(fitting(self.record, self.spec.task)), cluster_name=name)

    @property
    def deletion(self) -> str:
        return CANCELING

    def delete(self, job: int | None) -> Any:
        """Cancel the job. A cluster that this run was to create, and that has not run it, is deleted."""
        name = self.spec.cluster
        if job is None and not self.existed:
            return self.sky.down(name)
        if job is None and self.record is None:
            why = "because another launch may use it"
            self.note(f"the cluster {name} is not deleted, {why}; `sky down {name}` deletes it")
        if job is None:
            # The request was canceled, perhaps after it had queued the job.
            live = self.sky.get(self.sky.queue(name, skip_finished=True))
            jobs = [each.job_id for each in live if each.job_name == self.spec.task["name"]]
        else:
            jobs = [job]
        return self.sky.cancel(name, job_ids=jobs) if jobs else None


def _stays(name: str, idle: int) -> str:
    return f"which is deleted {idle} minutes after its last run; sooner: sky down {name}"


def submission(
    spec: SkySpec, sky: Any, state: JobState, note: Callable[[str], Any], idle: Callable[[int], bool]
) -> Submission:
    """How this run is submitted."""
    if spec.kept and not spec.managed:
        return KeptCluster(spec, sky, state, note, idle)
    return (ManagedJob if spec.managed else OwnCluster)(spec, sky, state, note)
