"""One run in the cluster that is looked at from all sides while it goes on: scraped by a real Prometheus, and
everything it says written down.

For test_metrics and test_secrets, which share the one launch. Prometheus is Debian's, unpacked here and not
installed; its scrape
configuration is made of the PodMonitors that a stack installs, as the operator of kube-prometheus-stack
would.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import secrets
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.cloud_stores import CloudStore, cloud_store
from tests.cluster.conftest import Cluster, until
from tests.cluster.debian import unpacked
from tests.cluster.launches import LONG, PROGRAM, RESTRICTED, Launch
from trainfleet.infra.kubernetes.monitoring import ray_pods
from trainfleet.local_cluster.images import LOCAL
from trainfleet.local_cluster.stores.servers import free_port

NAMESPACE = "watched"
RUN = "watched"
PORT = "__meta_kubernetes_pod_container_port_name"
WATCHED_STEPS = 50
SMALL_BYTES = 8_000_000
KINDS = "rayjob,raycluster,configmap,pod,job,service,event,serviceaccount,networkpolicy"
_ARGUMENTS = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
_JOBS = (
    "import os, urllib.request as u; "
    "r = u.Request('http://127.0.0.1:8265/api/jobs/', headers={'Authorization': 'Bearer ' + os.environ['RAY_AUTH_TOKEN']}); print(u.urlopen(r).read().decode())"
)


class Prometheus:
    """A Prometheus that runs here."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str, **parameters: str) -> dict[str, Any]:
        """What its API answers, refusals too."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}", timeout=30
            ) as answer:
                found: dict[str, Any] = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            found = json.loads(error.read())
        return found

    def rows(self, expression: str) -> list[dict[str, Any]]:
        """The rows of a query that it takes."""
        answer = self.ask("query", query=expression)
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


@dataclass(frozen=True)
class Watched:
    """What was seen of the run."""

    prometheus: Prometheus
    folder: Path
    own_port: int
    """Where Prometheus looks for a run's own gauges on this machine."""
    answers: dict[str, list[dict[str, Any]]]
    """By expression of a dashboard or alert."""
    texts: dict[str, str]
    """All that was said, by where."""
    planted: dict[str, str] = field(repr=False)
    """Every secret value that the run had, by its name."""


def expressions() -> list[str]:
    """What the dashboards and alerts of a platform with GPUs and a queue ask."""
    from tests.infra.kubernetes.planned import plan
    from tests.infra.kubernetes.test_dashboards import expressions as asked

    return list(dict.fromkeys(asked(plan())))


def scraped(targets: Path) -> list[dict[str, Any]]:
    """Scrape configurations that do what the PodMonitors of Ray's pods say. Debian's Prometheus cannot ask
    Kubernetes: pods come by a file.
    """
    found = []
    for kind in ("head", "worker"):
        monitor = ray_pods(kind)
        for endpoint in monitor.pod_metrics_endpoints:
            keep = [
                {"source_labels": [_label(key)], "regex": value, "action": "keep"}
                for key, value in monitor.selector.match_labels.items()
            ]
            keep.append({"source_labels": [PORT], "regex": endpoint.port, "action": "keep"})
            named = [
                {"source_labels": list(each.source_labels), "target_label": each.target_label}
                for each in endpoint.relabelings or ()
            ]
            found.append(
                {
                    "job_name": f"{kind}-{endpoint.port}",
                    "scrape_interval": "2s",
                    "scrape_timeout": "2s",
                    "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
                    "relabel_configs": [*keep, *named],
                }
            )
    return found


def targets(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every port of every pod, with the labels that Prometheus' own discovery of pods would give."""
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {
                PORT: str(port.get("name", "")),
                **{_label(key): value for key, value in pod["metadata"]["labels"].items()},
            },
        }
        for pod in pods
        if pod["status"].get("podIP")
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
    ]


def _label(key: str) -> str:
    return "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", key)


@contextlib.contextmanager
def prometheus(folder: Path, configurations: list[dict[str, Any]]) -> Iterator[Prometheus]:
    """A Prometheus with these scrape configurations, until the end of the block."""
    programs = unpacked(folder, "prometheus") / "usr" / "bin"
    file, port = folder / "prometheus.yaml", free_port()
    file.write_text(
        yaml.safe_dump({"global": {"evaluation_interval": "5s"}, "scrape_configs": configurations})
    )
    checked = subprocess.run(
        [str(programs / "promtool"), "check", "config", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    command = [
        str(programs / "prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
        )
    try:
        server = Prometheus(port)

        def ready() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(OSError):
                return bool(server.ask("status/runtimeinfo"))
            return False

        until(ready, "Prometheus answers", 120)
        yield server
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="session")
def watched(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A run that was trained, scraped, listened to and stopped; Prometheus goes on with what it has."""
    folder = tmp_path_factory.mktemp("watched")
    for name in ("store", "text", "prometheus"):
        (folder / name).mkdir()
    for source in sorted(Path(os.__file__).parent.glob("[a-d]*.py")):
        (folder / "text" / source.name).write_bytes(source.read_bytes())
    own = free_port()
    configurations = [
        *scraped(folder / "targets.json"),
        {
            "job_name": "own",
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "static_configs": [{"targets": [f"127.0.0.1:{own}"]}],
        },
    ]
    with (
        prometheus(folder / "prometheus", configurations) as server,
        cloud_store("s3", str(cluster.state.host_address), folder / "store") as store,
    ):
        store.fill(folder / "text", "text")
        planted = {**store.keys, "HF_TOKEN": f"hf_{secrets.token_hex(16)}"}
        cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": RESTRICTED}}
        )
        cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "keys", "namespace": NAMESPACE},
                "stringData": planted,
            }
        )
        answers, texts, made = _run(cluster, store, server, folder)
        yield Watched(
            server,
            folder,
            own,
            answers,
            texts,
            {key: value for key, value in {**planted, **made}.items() if len(value) > 8},
        )
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _run(
    cluster: Cluster, store: CloudStore, server: Prometheus, folder: Path
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str], dict[str, str]]:
    """Launch, watch, stop."""

    def kubectl(*arguments: str) -> str:
        return cluster.kubectl("-n", NAMESPACE, *arguments, check=False)

    mine = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "AZURE_"))}
    environment = (
        mine
        | store.environment
        | {
            "NO_COLOR": "1",
            "COLUMNS": "160",
            "PYTHONUNBUFFERED": "1",
            "KUBECONFIG": str(cluster.state.kubeconfig),
        }
    )
    where = [
        "--context",
        cluster.state.context,
        "--namespace",
        NAMESPACE,
        "--image",
        LOCAL,
        "--from-secret",
        "keys",
    ]
    recipe = [
        f"workload.data.source={store.url}/text",
        "scaling.cpus_per_worker=0.25",
        "log.prometheus=ray",
        *LONG,
        "validation.every=50",
    ]
    command = [
        PROGRAM,
        "launch",
        "lm-tiny",
        "--on",
        "kuberay",
        *where,
        "--storage",
        f"{store.url}/kept",
        "--run",
        RUN,
        *recipe,
    ]
    said = folder / "launch.out"
    with said.open("w") as log:
        launch = Launch(
            subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True
            ),
            said,
        )
    try:
        launch.reach(WATCHED_STEPS + 5, 600)
        (folder / "targets.json").write_text(
            json.dumps(targets(json.loads(kubectl("get", "pod", "-o", "json"))["items"]))
        )
        answers = _answers(server)
        texts = {f"objects {kind}": kubectl("get", kind, "-o", "yaml") for kind in KINDS.split(",")}
        texts["metrics"] = json.dumps(server.ask("series", **{"match[]": '{__name__=~".+"}'}))
        texts["targets"] = json.dumps(server.ask("targets"))
        for pod in kubectl("get", "pod", "-o", "name").split():
            texts[f"log {pod}"] = kubectl("logs", pod, "--all-containers", "--tail=-1")
            texts[f"described {pod}"] = kubectl("describe", pod)
            texts[f"arguments {pod}"] = kubectl("exec", pod, "--", "sh", "-c", _ARGUMENTS)
            texts[f"ray's logs {pod}"] = kubectl(
                "exec", pod, "--", "sh", "-c", "cat /tmp/ray/session_latest/logs/*.* 2>/dev/null"
            )
        head = kubectl("get", "pod", "-l", "ray.io/node-type=head", "-o", "name").strip()
        texts["Ray's jobs"] = kubectl("exec", head, "--", "python", "-c", _JOBS)
        made = {
            f"{each['metadata']['name']}/{key}": base64.b64decode(value).decode(errors="replace")
            for each in json.loads(kubectl("get", "secret", "-o", "json"))["items"]
            for key, value in each.get("data", {}).items()
        }
        assert launch.interrupt() == 130, launch.said
    finally:
        launch.kill()
        kubectl("delete", "rayjob", f"tf-{RUN}", "--ignore-not-found", "--wait=false")
    texts["launch"] = launch.said
    places = {"run": folder / "runs", "store": store.folder / "data"}
    for name, place in places.items():
        for path in place.rglob("*"):
            if path.is_file() and path.stat().st_size < SMALL_BYTES:
                texts[f"{name} {path.relative_to(place)}"] = path.read_bytes().decode(errors="replace")
    texts["store log"] = (store.folder / "log").read_text(errors="replace")
    return answers, texts, made


def _answers(server: Prometheus) -> dict[str, list[dict[str, Any]]]:
    """Ask what the dashboards ask until every metric that is told here has come in, with news of the run as
    young as that; at most two minutes.
    """
    asked = expressions()
    told = [
        *(expression for expression in asked if told_here(expression)),
        f"ray_trainfleet_step >= {WATCHED_STEPS}",
    ]
    deadline = time.monotonic() + 120
    while any(not server.rows(each) for each in told) and time.monotonic() < deadline:
        time.sleep(1)
    return {each: server.rows(each) for each in asked}


def told_here(expression: str) -> bool:
    """Whether Ray, the run or Prometheus itself tells what an expression asks for, and it is not one that is
    true of a fault alone.
    """
    from tests.infra.kubernetes.test_dashboards import metrics_in
    from trainfleet.infra.kubernetes.dashboards.metrics import METRICS, PROMETHEUS, RAY, SINK

    return {METRICS[name] for name in metrics_in(expression)} <= {
        RAY,
        SINK,
        PROMETHEUS,
    } and "== 0" not in expression
