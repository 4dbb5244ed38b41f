"""Small objects for the tests. Their image is the pause image: every cluster has it, and it has busybox."""

from __future__ import annotations

from typing import Any

from trainfleet.local_cluster.servers import PAUSE


def pod(name: str, script: str, **spec: Any) -> dict[str, Any]:
    """A pod that runs a script of busybox's shell."""
    container = {
        "name": "main",
        "image": PAUSE,
        "command": ["/busybox", "sh", "-c", f"alias busybox=/busybox; {script}"],
    }
    container |= spec.pop("container", {})
    body = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, **spec}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": body,
    }


def web(name: str, text: str) -> list[dict[str, Any]]:
    """A pod that serves a text at port 8000, and its service at port 80."""
    serve = pod(
        name, f"/busybox mkdir -p /www; echo {text} > /www/index.html; exec /busybox httpd -f -p 8000 -h /www"
    )
    serve["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    return [serve, service]
