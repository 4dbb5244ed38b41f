"""Pod templates, receivers of alerts, and what servers of notifications answer."""

from __future__ import annotations

import atexit
import functools
import socketserver
import threading
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from tests.fuzz import hostile
from tests.fuzz.target import Target, written

ROOT = Path(__file__).parents[2]
POD: dict[str, Any] = {
    "metadata": {"labels": {"ray.io/node-type": "worker"}, "annotations": {}},
    "spec": {
        "containers": [
            {
                "name": "ray-worker",
                "image": "trainer:1",
                "env": [{"name": "HOME", "value": "/tmp"}],
                "resources": {"limits": {"nvidia.com/gpu": 1}},
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    },
}
PATCHES: tuple[Any, ...] = (
    {
        "workers": {
            "metadata": {"labels": {"team": "ml"}, "annotations": {"a": "b"}},
            "spec": {
                "containers": [
                    {
                        "name": "trainer",
                        "env": [{"name": "HOME", "value": "/home"}],
                        "resources": {"requests": {"memory": "1Gi"}},
                        "volumeMounts": [{"mountPath": "/dev/shm", "$patch": "delete"}],
                        "ports": [{"containerPort": 80, "name": "x"}],
                    },
                    {"name": "sidecar", "image": "b"},
                ],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "x"}}],
                "tolerations": [{"key": "a"}],
                "terminationGracePeriodSeconds": 60,
                "imagePullSecrets": [{"name": "x"}],
                "securityContext": {"$patch": "replace", "runAsUser": 5},
            },
        },
        "head": {"spec": {"nodeSelector": None, "hostAliases": [{"ip": "1.1.1.1", "hostnames": ["a"]}]}},
    },
)
RECEIVERS: tuple[Any, ...] = (
    [
        {
            "name": "ml-team",
            "kind": "slack",
            "secret": "alerts",
            "channel": "#ml",
            "severities": ["critical"],
        },
        {"name": "hook", "kind": "webhook", "secret": "hook"},
        {"name": "pages", "kind": "pagerduty", "secret": "pages"},
        {
            "name": "mail",
            "kind": "email",
            "secret": "smtp",
            "to": ["a@example.com"],
            "sender": "b@example.com",
            "smarthost": "smtp.example.com:587",
            "username": "u",
        },
    ],
)
REPLIES = (
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.1 503 Busy\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/token\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
)
ODD_REPLIES = (
    *(
        f"HTTP/1.1 429 Slow\r\nRetry-After: {value}\r\n\r\n".encode("latin-1")
        for value in ("\xb2", "9" * 9000, "-1", "nan")
    ),
    b"",
    b"\0" * 100,
    b"HTTP/1.1 999 x\r\n\r\n",
    b"HTTP/1.1 -1 x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500 + b"\r\n",
    b"HTTP/1.1 200 OK\r\na: " + b"b" * 100_000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
)
MESSAGE: dict[str, Any] = {
    "id": "1",
    "event": "failure",
    "run": "lm",
    "launch": "a",
    "text": "The run failed at step 3.",
    "details": {"step": 3, "storage": "s3://bucket/lm", "error": "out of memory"},
}
TOKEN = "T0KEN-of-the-address"


class RejectedMessage(Exception):  # noqa: N818 - a result
    """Raised for a message that was not delivered, with the reason."""


def _pod_template(raw: bytes, folder: Path) -> object:
    from trainfleet.training.launch.remote import pod_template

    found = pod_template.load(str(written("pods.yaml", raw, folder)))
    patches = [each for each in (found.head, found.workers) if each]
    pod = pod_template.with_patches(POD, patches, "ray-worker")
    checked = pod_template.with_patches(POD, pod_template.for_check(patches), "ray-worker")
    return yaml.safe_dump([pod, checked]), pod_template.grace_seconds(patches, 30)


def _stack(changes: dict[str, Any], folder: Path) -> Any:
    """The spec of a development stack with these keys."""
    from trainfleet.infra.spec.load import load_stack

    document = yaml.safe_load((ROOT / "stacks" / "Pulumi.aws-dev.yaml").read_text(encoding="utf-8"))
    document["config"]["trainfleet:platform"] |= changes
    file = written("Pulumi.fuzz.yaml", hostile.as_yaml(document), folder)
    return load_stack(str(file), folder, warn=lambda _: None)


def _pod_template_of_stack(patch: Any, folder: Path) -> object:
    from trainfleet.training.launch.remote import pod_template

    found = _stack({"pod_template": patch}, folder).pod_template
    return pod_template.with_patches(
        POD, [each for each in (found.head, found.workers) if each], "ray-worker"
    )


def _receivers(receivers: Any, folder: Path) -> object:
    from trainfleet.infra.kubernetes import alertmanager

    spec = _stack({"monitoring": {"receivers": receivers}}, folder)
    found = yaml.safe_load(alertmanager.configuration(spec.monitoring.receivers))
    names = {each["name"] for each in found["receivers"]}
    assert {each["receiver"] for each in found["route"]["routes"]} <= names
    return alertmanager.mounted_secrets(spec.monitoring.receivers)


class Server(socketserver.ThreadingTCPServer):
    """Answers each request with `reply`, and closes the connection."""

    daemon_threads = True
    reply = b""


class Handler(socketserver.BaseRequestHandler):
    """One connection."""

    def handle(self) -> None:
        self.request.settimeout(5)
        self.request.recv(1 << 20)
        self.request.sendall(self.server.reply)  # type: ignore[attr-defined]  # `Server` above


@functools.cache
def _server() -> Server:
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    atexit.register(server.shutdown)
    return server


def _delivery(given: tuple[bytes, Any], _folder: Path) -> None:
    from trainfleet.training.notifications.delivery import Endpoint, deliver
    from trainfleet.training.notifications.messages import Message, slack_body

    server, (reply, details) = _server(), given
    server.reply = reply
    message = Message(**MESSAGE | {"details": details if isinstance(details, dict) else {"x": details}})
    slack_body(message)
    url = f"http://127.0.0.1:{server.server_address[1]}/{TOKEN}"
    reason = deliver(Endpoint("key", "VARIABLE", url, "webhook"), message, wait=lambda _: True, timeout_s=2)
    assert TOKEN not in reason
    if reason:
        raise RejectedMessage(reason)


def _replies() -> st.SearchStrategy[Any]:
    reply = st.one_of(
        st.sampled_from(ODD_REPLIES),
        st.sampled_from(REPLIES).map(str.encode),
        st.sampled_from(REPLIES).flatmap(hostile.flipped),
        st.binary(max_size=100),
    )
    return st.tuples(reply, hostile.mutated((MESSAGE["details"],)))


TARGETS: dict[str, Target] = {
    "pod-template": Target(
        "`--pod-template`",
        lambda: hostile.yaml_files(*PATCHES),
        _pod_template,
        examples=(b"!!timestamp nothing", b"!!int ''"),
    ),
    "pod-template-of-stack": Target(
        "`pod_template` of a stack",
        lambda: hostile.mutated(PATCHES),
        _pod_template_of_stack,
        examples=({"workers": {"spec": {"containers": 35}}},),
    ),
    "receivers": Target(
        "receivers of Alertmanager in a stack", lambda: hostile.mutated(RECEIVERS), _receivers
    ),
    "notifications": Target(
        "answers to notifications", _replies, _delivery, (RejectedMessage,), examples=((ODD_REPLIES[0], {}),)
    ),
}
