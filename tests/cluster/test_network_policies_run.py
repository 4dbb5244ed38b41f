"""The policies of the platform `local`, enforced: they admit a whole run on two nodes, and nothing else."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster, trainfleet, until, with_kubectl
from tests.cluster.launches import PROGRAM
from tests.cluster.pods import pod

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(2400)]
NAME = "policies"
RUN = "enforced"
RAY_PORTS = {6379: True, 8265: True, 10001: False}
"""Ports of the head, and whether pods of the operator's namespace may reach them."""
RESTRICTED = {
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
}
STORE_PORT = 9000


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Path, dict[str, str]]]:
    """Two nodes with the image, the store and the stack `local`: the cluster, its outputs, and a shell's
    variables.
    """
    folder = tmp_path_factory.mktemp("platform")
    trainfleet("cluster", "down", "--name", NAME)
    done = trainfleet("cluster", "up", "--name", NAME, "--nodes", "2", timeout=2700)
    assert done.returncode == 0, done.stderr
    here = with_kubectl(Cluster(NAME, trainfleet))
    done = trainfleet("cluster", "store", "--name", NAME, "--detach", "--folder", str(folder / "store"))
    assert done.returncode == 0, done.stderr
    script = f"source {folder / 'store' / 'environment'}; env -0"
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    variables = dict(row.split("=", 1) for row in shell.split("\0") if row)
    outputs = folder / "local.json"
    done = trainfleet("rehearse", "local", "--on-cluster", NAME, "--leave", "--outputs", str(outputs))
    assert done.returncode == 0, done.stderr
    yield here, outputs, variables
    assert trainfleet("cluster", "down", "--name", NAME).returncode == 0


def connects(cluster: Cluster, space: str, name: str, address: str, port: int) -> bool:
    """Whether a pod opens a TCP connection."""
    line = f"/busybox timeout 5 /busybox nc -w 4 {address} {port} </dev/null >/dev/null 2>&1"
    shell = ("/busybox", "sh", "-c", f"{line} && echo yes || echo no")
    output = cluster.kubectl("-n", space, "exec", name, "--", *shell)
    return output.strip() == "yes"


def head(cluster: Cluster) -> str:
    """The address of the run's head, or nothing."""
    shown = ("-l", "ray.io/node-type=head", "-o", "jsonpath={.items[*].status.podIP}")
    return cluster.kubectl("-n", "training", "get", "pods", *shown)


def test_a_run_finishes_and_no_other_namespace_reaches_its_ports(
    platform: tuple[Cluster, Path, dict[str, str]], tmp_path: Path
) -> None:
    cluster, outputs, variables = platform
    for space, name, place in (
        ("training", "inside", 0),
        ("default", "stranger", 0),
        ("default", "stranger2", 1),
        ("kuberay-system", "operator", 0),
    ):
        on = cluster.state.nodes[place].name
        made = pod(name, "exec /busybox sleep 3600", nodeName=on, container=dict(RESTRICTED))
        made["metadata"]["namespace"] = space
        cluster.apply(made)
    for space in ("training", "default", "kuberay-system"):
        cluster.kubectl("-n", space, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s")
    size = ("scaling.workers=2", "scaling.cpus_per_worker=0.25")
    command = [PROGRAM, "launch", "lm-tiny", "--on", "kuberay", "--stack", str(outputs), "--run", RUN, *size]
    environment = os.environ | variables | {"NO_COLOR": "1"}
    with (tmp_path / "launch.out").open("w") as log:
        launch = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        address = until(lambda: launch.poll() is not None or head(cluster), "the head", 300)
        assert launch.poll() is None, (tmp_path / "launch.out").read_text()
        for port, operator in RAY_PORTS.items():
            until(
                lambda port=port: connects(cluster, "training", "inside", address, port), f"port {port}", 300
            )
            assert not connects(cluster, "default", "stranger", address, port), port
            assert not connects(cluster, "default", "stranger2", address, port), port
            assert connects(cluster, "kuberay-system", "operator", address, port) == operator, port
        assert launch.poll() is None, "the run ended before its ports were tried"
        assert launch.wait(900) == 0, (tmp_path / "launch.out").read_text()[-3000:]
    finally:
        launch.kill()
    record = json.loads((tmp_path / "runs" / RUN / "run.json").read_text())
    assert record["status"] == "finished"


def test_a_run_reaches_the_store_and_no_other_port_of_this_machine(
    platform: tuple[Cluster, Path, dict[str, str]],
) -> None:
    cluster = platform[0]
    here = str(cluster.state.host_address)
    with http.server.ThreadingHTTPServer((here, 0), http.server.SimpleHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        assert connects(cluster, "default", "stranger", here, other.server_port)
        assert not connects(cluster, "training", "inside", here, other.server_port)
        assert connects(cluster, "training", "inside", here, STORE_PORT)
        other.shutdown()
