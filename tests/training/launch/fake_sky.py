"""A follower of a SkyPilot run in this process, and a client that answers it without SkyPilot's server."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

from trainfleet.training.launch.sky.follow import Follower
from trainfleet.training.launch.sky.messages import SkySpec

ORDER = {
    "task": {
        "num_nodes": 2,
        "resources": {"ordered": [{"infra": "k8s/near"}, {"infra": "k8s/far"}]},
        "run": "true",
    },
    "cluster": "tf-night",
    "run": "night",
    "selector": "trainfleet.io/run=night",
    "managed": False,
    "detach": False,
    "within_s": 600.0,
    "contexts": {"near": "training", "far": "training"},
    "required": {},
    "left_out": [],
}


LOG = [
    "Launching on Kubernetes near.\n",
    '(head, rank=0, pid=7) {"kind": "step", "step": 3, "total": 9}\n',
    '(head, rank=0, pid=7) {"kind": "exit", "code": 0}\n',
]


class ResourcesUnavailableError(Exception):
    """Has the name of SkyPilot's own error."""


class FakeSky(SimpleNamespace):
    """The part of SkyPilot that a follower calls."""

    def __init__(
        self, log: list[str] | None = None, failure: Exception | None = None, live: list[Any] | None = None
    ) -> None:
        """`live`: SkyPilot's records of the caller's clusters; `others` has those of other users."""
        super().__init__(
            calls=[],
            log=LOG if log is None else log,
            failure=failure,
            live=live or [],
            others=[],
            queued=[],
            StatusRefreshMode=SimpleNamespace(AUTO="auto"),
            blocked=threading.Event(),
        )

    def status(self, cluster_names: list[str], all_users: bool = False, **_: Any) -> str:
        self.calls.append(("status", *cluster_names))
        self.listed = [*self.live, *(self.others if all_users else [])]
        return "status"

    def launch(self, task: Any, **options: Any) -> str:
        self.calls.append(("launch", options["cluster_name"], options["down"]))
        self.idle = options["idle_minutes_to_autostop"]
        return "launch"

    def exec(self, task: Any, cluster_name: str) -> str:
        self.calls.append(("exec", cluster_name))
        self.task = task
        return "exec"

    def queue(self, cluster_name: str, **_: Any) -> str:
        return "queue"

    def autostop(self, cluster_name: str, idle_minutes: int, down: bool) -> str:
        self.calls.append(("autostop", cluster_name, idle_minutes, down))
        return "autostop"

    def cancel(self, cluster_name: str, job_ids: list[int]) -> str:
        self.calls.append(("cancel_job", cluster_name, *job_ids))
        return "cancel_job"

    def get(self, request_id: str) -> Any:
        if request_id == "job_status":
            return {1: self.state()}
        if request_id == "queue":
            return self.queued
        return self.listed if request_id == "status" else None

    def state(self) -> Any:
        """The state of the job: ended, unless a test says otherwise."""
        return SimpleNamespace(is_terminal=lambda: True)

    def stream_and_get(self, request_id: str, output_stream: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        output_stream.write("\x1b[33mCluster launched: tf-night\x1b[0m\n")
        return 1, None

    def tail_logs(self, cluster_name: str, job_id: int, follow: bool, output_stream: Any) -> int:
        for line in self.log:
            output_stream.write(line)
        return 0

    def job_status(self, cluster_name: str, job_ids: list[int]) -> str:
        self.calls.append(("job_status", cluster_name))
        return "job_status"

    def down(self, cluster_name: str) -> str:
        self.calls.append(("down", cluster_name))
        return "down"

    def api_cancel(self, request_ids: str, silent: bool) -> str:
        self.calls.append(("cancel", request_ids))
        return "cancel"


def driven(reported: list[dict[str, Any]], sky: FakeSky, **order: Any) -> Follower:
    document = json.loads(json.dumps(ORDER))
    if "contexts" in order:
        document["task"]["resources"]["ordered"] = [{"infra": f"k8s/{each}"} for each in order["contexts"]]
    spec = SkySpec.model_validate(document | order)
    return Follower(spec, lambda kind, **fields: reported.append({"kind": kind, **fields}), sky)
