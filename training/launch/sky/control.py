"""The control of a run by SkyPilot: through SkyPilot where it knows the run, through its pods where they can
be reached, and else through its storage.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from trainfleet.errors import InputError, MissingToolError, Problem, TrainfleetError
from trainfleet.training.launch.control import ALREADY_ENDED, SAVED, Dashboard, RunControl, await_end
from trainfleet.training.launch.remote.forward import forwarded
from trainfleet.training.launch.remote.log_stream import Line
from trainfleet.training.launch.remote.ray_job import DASHBOARD_PORT
from trainfleet.training.launch.remote.where import Where
from trainfleet.training.launch.sky.configure import config_path
from trainfleet.training.launch.sky.event_stream import EventStream
from trainfleet.training.launch.sky.job_state import RECONNECT_S, JobState, UnreachableError
from trainfleet.training.launch.sky.pods import SKY_HEAD_LABEL, ask_to_stop, delete_pods, live_pods
from trainfleet.training.launch.sky.server import ensure_server
from trainfleet.training.launch.sky.skypilot import (
    is_refusal,
    messages_to_stderr,
    require_skypilot,
    set_client_options,
    wait_for,
)
from trainfleet.training.launch.sky.task import RUN_LABEL, cluster_name
from trainfleet.training.runs.listing import ENDED
from trainfleet.training.stores.lease import LEASE, request_stop


class SkyControl(RunControl):
    """A SkyPilot cluster or managed job."""

    @property
    def cluster(self) -> str:
        """The name of the SkyPilot cluster or managed job."""
        return str(self.ref.place.get("cluster") or cluster_name(self.ref.name))

    @property
    def managed(self) -> bool:
        """Whether SkyPilot restarts it elsewhere."""
        return bool(self.ref.place.get("managed"))

    @property
    def kept(self) -> bool:
        """Whether the cluster outlives the run."""
        return bool(self.ref.place.get("kept"))

    @property
    def selector(self) -> str:
        """The label that selects its pods."""
        return str(self.ref.place.get("selector") or f"{RUN_LABEL}={self.ref.name}")

    @property
    def contexts(self) -> dict[str, str]:
        """The contexts where it may be, with the namespace in each."""
        if self.ref.where.named:
            cluster = self.ref.where.connect()
            return {cluster.name: cluster.namespace}
        contexts = self.ref.place.get("contexts")
        return (
            {str(key): str(value) for key, value in contexts.items()} if isinstance(contexts, Mapping) else {}
        )

    def lines(self, *, follow: bool) -> Iterator[Line]:
        """SkyPilot's log of it; its stored rows where SkyPilot does not know it."""
        job = self._job
        if job is None:
            yield from super().lines(follow=follow)
        else:
            yield from self._log(job, follow=follow)

    def stop(self, *, now: bool, within_s: float, report: Callable[[str], Any]) -> str:
        """Ask its ranks to save, wait for its end, and delete its pods."""
        store, info = self.store(), self.info()
        ended = info is not None and info.state in ENDED
        how = ALREADY_ENDED if ended else "ended at once"
        if not ended and not now and LEASE in store.entries():
            if not ask_to_stop(self.contexts, self.selector):
                request_stop(store)
            report("is asked to save and end")
            saved = await_end(store, within_s)
            late = f"did not end within {within_s:.0f} s, and was ended at its newest checkpoint"
            how = SAVED if saved else late
        report("is canceled" if self.kept or self.managed else "has its pods deleted")
        if not self._release() and not ended:
            return f"{how}; SkyPilot releases its pods, which cannot be reached from here, by itself"
        return how

    @contextlib.contextmanager
    def dashboard(self, port: int, report: Callable[[str], Any]) -> Iterator[Dashboard]:
        """Through the API server of the cluster where its pods are."""
        heads = [
            (context, str(pod["metadata"]["name"]))
            for context, pod in live_pods(self.contexts, self.selector) or []
            if pod["metadata"].get("labels", {}).get(SKY_HEAD_LABEL) == "1"
        ]
        if not heads:
            problem = Problem(
                self.ref.name, "has no pod in " + (", ".join(self.contexts) or "any known context")
            )
            raise InputError("there is no dashboard", [problem])
        context, name = heads[0]
        cluster = Where(context=context, namespace=self.contexts[context]).connect()
        with forwarded(cluster, lambda: name, DASHBOARD_PORT, port, report) as local_port:
            yield Dashboard(f"http://127.0.0.1:{local_port}", self.cluster)

    @cached_property
    def _job(self) -> int | None:
        """The number of its last job; None if SkyPilot here does not know it or is not reached (0: a managed
        job).
        """
        sky = self._sky
        if sky is None:
            return None
        if self.managed:
            return 0 if self._job_ids(sky) else None
        if not self._has_cluster(sky):
            return None
        try:
            records = sky.get(sky.queue(self.cluster, all_users=True))
        except Exception as error:
            if not is_refusal(error):
                raise
            return None
        name = cluster_name(self.ref.name)
        return max((each.job_id for each in records if each.job_name == name), default=None)

    @cached_property
    def _sky(self) -> Any:
        """SkyPilot's client, with a server that answers; None where it is not installed."""
        try:
            require_skypilot()
            ensure_server(os.environ, config_path(os.environ))
        except MissingToolError:
            return None
        set_client_options(kept=self.kept)
        import sky

        messages_to_stderr()
        return sky

    def _has_cluster(self, sky: Any) -> bool:
        """Whether SkyPilot has its cluster, up or not; False if SkyPilot is not reached."""
        try:
            return any(sky.get(sky.status(cluster_names=[self.cluster])))
        except Exception as error:
            if not is_refusal(error):
                raise
            return False

    def _job_ids(self, sky: Any) -> list[int]:
        """The numbers of its managed jobs that have not ended; none if SkyPilot is not reached."""
        state = JobState(sky, lambda _: None, lambda _: None, time.sleep)
        try:
            return state.job_ids(self.cluster)
        except Exception as error:
            if not is_refusal(error):
                raise
            return []

    def _log(self, job: int, *, follow: bool) -> Iterator[Line]:
        """The log, read again whenever it is interrupted, until SkyPilot reports the job's end."""
        sky, lines = self._sky, queue.SimpleQueue[Line | None]()
        stream = EventStream(lines.put, lines.put)
        state = JobState(sky, lines.put, lambda text: lines.put({"kind": "note", "text": text}), time.sleep)

        def tail() -> None:
            if self.managed:
                from sky import jobs

                jobs.tail_logs(name=self.cluster, follow=follow, output_stream=stream)
            else:
                sky.tail_logs(self.cluster, job, follow=follow, output_stream=stream)

        def over() -> bool:
            return not state.is_live(self.cluster) if self.managed else state.ended(self.cluster, job)

        def read() -> None:
            pauses, ended = iter(RECONNECT_S), not follow
            try:
                while True:
                    state.read_log(tail)
                    stream.finish()
                    if ended or (stream.exit_code is not None and not self.managed):
                        return
                    # If it has ended, its last lines may have come after the log was interrupted.
                    ended = over()
                    if not ended:
                        time.sleep(next(pauses, RECONNECT_S[-1]))
            except UnreachableError as error:
                text = f"SkyPilot no longer answers ({error.reason}); the run continues"
                lines.put({"kind": "warning", "text": text})
            finally:
                lines.put(None)

        threading.Thread(target=read, daemon=True, name="sky-log").start()
        while (line := lines.get()) is not None:
            yield line

    def _release(self) -> bool:
        """Delete what the run holds; whether anything could be reached."""
        sky = self._sky
        if sky is not None and self.managed and (found := self._job_ids(sky)):
            from sky import jobs

            # By number: SkyPilot looks up a name among the jobs of all users.
            command = f"sky jobs cancel {' '.join(map(str, found))}"
            return self._wait_for(sky, lambda: jobs.cancel(job_ids=found), command)
        if sky is not None and self.kept and (job := self._job) is not None:
            command = f"sky cancel {self.cluster} {job}"
            return self._wait_for(sky, lambda: sky.cancel(self.cluster, job_ids=[job]), command)
        if self.managed or self.kept:
            return False
        if sky is not None and self._has_cluster(sky):
            # Also while SkyPilot looks for pods and has no job yet: `down` ends the launch.
            return self._wait_for(sky, lambda: sky.down(self.cluster), f"sky down {self.cluster}")
        return delete_pods(self.contexts, self.selector)

    def _wait_for(self, sky: Any, request: Callable[[], Any], command: str) -> bool:
        """Wait for a request, which is that of `command`, with a limit.

        Raises:
            TrainfleetError: SkyPilot could not do it.
        """
        if failed := wait_for(sky, request):
            problem = Problem(self.cluster, failed, command)
            raise TrainfleetError("SkyPilot did not delete the run's pods", [problem])
        return True
