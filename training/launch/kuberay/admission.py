"""Whether a queue holds a run back, at its start or after a preemption, and since when it does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainfleet.training.launch.kuberay.messages import KubeRaySpec
from trainfleet.training.launch.remote.kubernetes import Cluster, retry_unreachable
from trainfleet.training.runtime.events import EventSink


class Admission:
    """The place of one run in the queue."""

    def __init__(
        self, spec: KubeRaySpec, cluster: Cluster, sink: EventSink, note: Callable[[str], None]
    ) -> None:
        self.spec, self.cluster, self.sink, self.note = spec, cluster, sink, note
        self._since: float | None = None
        """Since when no queue holds the run back."""

    def held(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """What the queue holds back, the RayJob or the long-lived cluster; None once it is admitted."""
        if not self.spec.cluster:
            found: dict[str, Any] | None = job
        elif self.spec.queue and self._since is None:
            name = self.spec.cluster
            found = retry_unreachable(lambda: self.cluster.get("RayCluster", name), self.note)
        else:
            found = None
        return found if found is not None and found.get("spec", {}).get("suspend") else None

    def waited_s(self, held: dict[str, Any] | None) -> float:
        """Seconds since the run was admitted; a queue may hold it back for as long as it needs."""
        now = time.monotonic()
        if held is not None:
            if self._since is not None and not self.spec.attach:
                self.sink.send("requeued")
            self._since = None
        elif self._since is None:
            self._since = now
            if not self.spec.attach:
                self.sink.send("admitted")
        return now - (self._since or now)
