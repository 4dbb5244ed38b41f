"""One run in the cluster that a real Prometheus scrapes, with all of its output collected.

test_launch_kuberay, test_metrics and test_secrets share its one launch. Prometheus comes from an unpacked Debian package. Its
scrape configuration is derived from the PodMonitors that a stack installs.
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
from collections.abc import Callable, Iterator
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
from trainfleet.local_cluster.stores.servers import BUCKET, free_port

NAMESPACE = "watched"
RUN = "watched"
PORT = "__meta_kubernetes_pod_container_port_name"
OBSERVED_STEPS = 50
SMALL_BYTES = 8_000_000
_SETTINGS = (*LONG, "validation.every=50", "strategy=fsdp")
KINDS = "rayjob,raycluster,configmap,pod,job,service,event,serviceaccount,networkpolicy"
_ARGUMENTS = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
_JOBS = (
    "import os, urllib.request as u; "
    "h = {'Authorization': 'Bearer ' + os.environ['RAY_AUTH_TOKEN']}; "
    "r = u.Request('http://127.0.0.1:8265/api/jobs/', headers=h); print(u.urlopen(r).read().decode())"
)


class Prometheus:
    """A Prometheus server on this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str, **parameters: str) -> dict[str, Any]:
        """The answer of its API, also if it is an error."""
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
        """The rows of a query. Fails if Prometheus rejects the query."""
        answer = self.ask("query", query=expression)
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


@dataclass(frozen=True)
class ObservedRun:
    """What was collected from the run."""

    prometheus: Prometheus
    folder: Path
    own_port: int
    """The port on this machine at which Prometheus scrapes a run's own metrics."""
    answers: dict[str, list[dict[str, Any]]]
    """The rows of each expression of the dashboards and alerts."""
    texts: dict[str, str]
    """All output of the run, by its source."""
    planted: dict[str, str] = field(repr=False)
    """Every secret value of the run, by its name."""
    stored: Path
    """Its files in the store."""
    text: Path
    """A folder with the text that it read from the store."""

    @property
    def settings(self) -> list[str]:
        """Its changes to the recipe, without its data and where it runs."""
        return list(_SETTINGS)


def expressions() -> list[str]:
    """The expressions of the dashboards and alerts of a platform with GPUs and a queue."""
    from tests.infra.kubernetes.planned import plan
    from tests.infra.kubernetes.test_dashboards import expressions as asked

    return list(dict.fromkeys(asked(plan())))


def scraped(targets: Path) -> list[dict[str, Any]]:
    """Scrape configurations that are equivalent to the PodMonitors of Ray's pods.

    Debian's Prometheus is built without Kubernetes discovery, so the pods come from a file.
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
    """Every port of every pod, with the labels that Prometheus' pod discovery would add."""
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
    """Run a Prometheus with these scrape configurations until the end of the block."""
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
def observed_run(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedRun]:
    """A run that was scraped, recorded and stopped. Prometheus keeps running with its data."""
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
        yield ObservedRun(
            server,
            folder,
            own,
            answers,
            texts,
            {key: value for key, value in {**planted, **made}.items() if len(value) > 8},
            store.folder / "data" / BUCKET / "kept" / RUN,
            folder / "text",
        )
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _run(
    cluster: Cluster, store: CloudStore, server: Prometheus, folder: Path
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str], dict[str, str]]:
    """Launch the run, collect everything, stop it."""

    def kubectl(*arguments: str) -> str:
        return cluster.kubectl("-n", NAMESPACE, *arguments, check=False)

    output = folder / "launch.out"
    with output.open("w") as log:
        launch = Launch(
            subprocess.Popen(
                _command(cluster, store),
                cwd=folder,
                env=_environment(cluster, store),
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            ),
            output,
        )
    try:
        launch.reach(OBSERVED_STEPS + 5, 600)
        (folder / "targets.json").write_text(
            json.dumps(targets(json.loads(kubectl("get", "pod", "-o", "json"))["items"]))
        )
        answers = _answers(server)
        texts = _texts(kubectl, server)
        made = {
            f"{each['metadata']['name']}/{key}": base64.b64decode(value).decode(errors="replace")
            for each in json.loads(kubectl("get", "secret", "-o", "json"))["items"]
            for key, value in each.get("data", {}).items()
        }
        assert launch.interrupt() == 130, launch.output
    finally:
        launch.kill()
        kubectl("delete", "rayjob", f"tf-{RUN}", "--ignore-not-found", "--wait=false")
    texts["launch"] = launch.output
    places = {"run": folder / "runs", "store": store.folder / "data"}
    for name, place in places.items():
        for path in place.rglob("*"):
            if path.is_file() and path.stat().st_size < SMALL_BYTES:
                texts[f"{name} {path.relative_to(place)}"] = path.read_bytes().decode(errors="replace")
    texts["store log"] = (store.folder / "log").read_text(errors="replace")
    return answers, texts, made


def _environment(cluster: Cluster, store: CloudStore) -> dict[str, str]:
    mine = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "AZURE_"))}
    return (
        mine
        | store.environment
        | {
            "NO_COLOR": "1",
            "COLUMNS": "160",
            "PYTHONUNBUFFERED": "1",
            "KUBECONFIG": str(cluster.state.kubeconfig),
        }
    )


def _command(cluster: Cluster, store: CloudStore) -> list[str]:
    """The launch of a long run that reads from and writes to the store."""
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
        *_SETTINGS,
    ]
    return [
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


def _texts(kubectl: Callable[..., str], server: Prometheus) -> dict[str, str]:
    """All output in the cluster, by its source: objects, metrics, logs, arguments and Ray's jobs."""
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
    return texts


def _answers(server: Prometheus) -> dict[str, list[dict[str, Any]]]:
    """Run the dashboards' queries until every one with a local source returns data.

    Waits at most two minutes, also until the run's step has reached OBSERVED_STEPS.
    """
    asked = expressions()
    awaited = [
        *(expression for expression in asked if has_local_source(expression)),
        f"ray_trainfleet_step >= {OBSERVED_STEPS}",
    ]
    deadline = time.monotonic() + 120
    while any(not server.rows(each) for each in awaited) and time.monotonic() < deadline:
        time.sleep(1)
    return {each: server.rows(each) for each in asked}


def has_local_source(expression: str) -> bool:
    """Whether an expression needs only metrics of Ray, the run and Prometheus itself.

    False for an expression that is true only after a fault.
    """
    from tests.infra.kubernetes.test_dashboards import metrics_in
    from trainfleet.infra.kubernetes.dashboards.metrics import METRICS, PROMETHEUS, RAY, SINK

    return {METRICS[name] for name in metrics_in(expression)} <= {
        RAY,
        SINK,
        PROMETHEUS,
    } and "== 0" not in expression
