"""Has the pods of a run replaced that are lost with their node, from inside the cluster, until the run ends.

The submitter runs it in a thread, with the token of its service account. The launcher does the same while it
follows the run: on a cluster without Trainfleet's accounts the submitter has no token.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainfleet.training.launch.remote.lost_pods import (
    LostPods,
    delete_options,
    is_of,
    release_patch,
    selector,
)
from trainfleet.training.launch.remote.ray_nodes import RayNodes, ray_nodes

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
POLL_INTERVAL_S, URGENT_INTERVAL_S = 3.0, 1.0
TIMEOUT_S = 10.0


class LostPodWatcher:
    """One Ray cluster, and the API server as its pods reach it.

    Args:
        cluster: the name of the RayCluster.
        dashboard: URL of its head's dashboard.
        note: takes a line for the user.
        account: the folder with the token of the service account.
    """

    def __init__(
        self, cluster: str, dashboard: str, note: Callable[[str], Any], account: Path = ACCOUNT
    ) -> None:
        self._account, self._cluster = account, cluster
        self._dashboard = dashboard
        address = f"{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
        namespace = (account / "namespace").read_text(encoding="utf-8").strip()
        self._pods = f"https://{address}/api/v1/namespaces/{namespace}/pods"
        self._lost = LostPods(self._delete, note, release=self._release)

    @property
    def interval_s(self) -> float:
        """How long to wait before the next look, in seconds: less while a pod is to be replaced."""
        return URGENT_INTERVAL_S if self._lost.waiting else POLL_INTERVAL_S

    def look(self) -> bool:
        """Look once; False if the account has no right to, and looking again is useless."""
        import requests

        try:
            answer = self._call("GET", self._pods, params={"labelSelector": selector(self._cluster)})
            if answer.status_code == requests.codes.forbidden:
                return False
            answer.raise_for_status()
            pods = [pod for pod in answer.json()["items"] if is_of(self._cluster, pod)]
            self._lost.look(pods, self._nodes())
        except (requests.RequestException, OSError, ValueError):
            pass  # the API server restarts, or cannot be reached for now
        return True

    def _nodes(self) -> RayNodes | None:
        """What Ray knows of its nodes; None while its head does not answer."""
        import requests

        try:
            return ray_nodes(self._dashboard, os.environ)
        except (requests.RequestException, ValueError):
            return None

    def _delete(self, pod: Any) -> None:
        url = f"{self._pods}/{pod['metadata']['name']}"
        self._call("DELETE", url, json=delete_options(pod)).raise_for_status()

    def _release(self, pod: Any) -> bool:
        """Release a pod; False if the account may not, as on a platform that is older than this right."""
        import requests

        url = f"{self._pods}/{pod['metadata']['name']}"
        kind = {"Content-Type": "application/merge-patch+json"}
        answer = self._call("PATCH", url, json=release_patch(pod), headers=kind)
        if answer.status_code in {requests.codes.forbidden, requests.codes.unprocessable_entity}:
            return False
        answer.raise_for_status()
        return True

    def _call(self, method: str, url: str, headers: Mapping[str, str] | None = None, **more: Any) -> Any:
        import requests

        # Read each time: the kubelet renews it.
        token = (self._account / "token").read_text(encoding="utf-8").strip()
        return requests.request(
            method,
            url,
            headers={"Authorization": f"Bearer {token}", **(headers or {})},
            verify=str(self._account / "ca.crt"),
            timeout=TIMEOUT_S,
            **more,
        )


def start(cluster: str, dashboard: str, note: Callable[[str], Any]) -> None:
    """Watch the pods of a Ray cluster until this process ends. Does nothing without a token."""
    if not (ACCOUNT / "token").exists():
        return
    watcher, again = LostPodWatcher(cluster, dashboard, note), threading.Event()

    def watch() -> None:
        while watcher.look():
            again.wait(watcher.interval_s)

    threading.Thread(target=watch, daemon=True, name="lost-pods").start()
