"""`trainfleet cluster store`: the commands that it prints work unchanged, and only its data remains."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import Cluster, trainfleet, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
PROGRAM = Path(sys.executable).with_name("trainfleet")
NAMESPACE = "trial"
READ_BACK = """
import os
from pyarrow import fs
path, endpoint = "runs/greeting", os.environ["AWS_ENDPOINT_URL"]
store = fs.S3FileSystem(tls_ca_file_path=os.environ["AWS_CA_BUNDLE"], endpoint_override=endpoint)
{act}
"""


@dataclass(frozen=True)
class Shown:
    """What the command printed, and its process."""

    process: subprocess.Popen[str]
    source: str
    launch: str


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    yield NAMESPACE
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")


@contextmanager
def serving(cluster: Cluster, folder: Path) -> Iterator[Shown]:
    with socket.create_server((str(cluster.state.host_address), 0)) as probe:
        port = probe.getsockname()[1]
    command = [
        str(PROGRAM),
        "cluster",
        "store",
        "--name",
        cluster.name,
        "--namespace",
        NAMESPACE,
        "--folder",
        str(folder),
        "--port",
        str(port),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        first, source, launch = (process.stdout.readline().strip() for _ in range(3))
        assert f"https://{cluster.state.host_address}:{port}" in first, first
        yield Shown(process, source, launch)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert not [
            each for each in psutil.process_iter(["cmdline"]) if str(folder) in (each.info["cmdline"] or [])
        ]


def bash(*lines: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-e"],
        input="\n".join(lines),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(act: str) -> str:
    return f"{sys.executable} - <<'E'{READ_BACK.format(act=act)}E"


def test_data_and_keys_survive_a_restart(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with serving(cluster, folder) as shown:
        bash(shown.source, python('store.open_output_stream(path).write(b"hello")'), folder=tmp_path)
        environment = (folder / "environment").read_text()
        assert (folder / "environment").stat().st_mode & 0o077 == 0
    secret = json.loads(cluster.kubectl("-n", namespace, "get", "secret", "s3-keys", "-o", "json"))["data"]
    assert (
        f"AWS_SECRET_ACCESS_KEY={base64.b64decode(secret['AWS_SECRET_ACCESS_KEY']).decode()}" in environment
    )
    with serving(cluster, folder) as shown:
        assert (
            bash(shown.source, python("print(store.open_input_stream(path).read())"), folder=tmp_path)
            == "b'hello'\n"
        )
        again = (folder / "environment").read_text()
    assert re.sub(r":\d+", "", again) == re.sub(r":\d+", "", environment)


def test_a_detached_store_answers_when_the_command_returns_and_can_be_stopped(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    with socket.create_server((str(cluster.state.host_address), 0)) as probe:
        port = str(probe.getsockname()[1])
    arguments = [
        "cluster",
        "store",
        "--name",
        cluster.name,
        "--namespace",
        NAMESPACE,
        "--folder",
        str(folder),
    ]
    done = trainfleet(*arguments, "--port", port, "--detach")
    servers = [
        each for each in psutil.process_iter(["cmdline"]) if str(folder) in (each.info["cmdline"] or [])
    ]
    try:
        assert (done.returncode, f"source {folder / 'environment'}" in done.stdout) == (0, True), done.stderr
        bash(
            f"source {folder / 'environment'}",
            python('store.open_output_stream(path).write(b"x")'),
            folder=tmp_path,
        )
        again = trainfleet(*arguments, "--port", port, "--detach")
        assert (again.returncode, "in use" in again.stderr) == (1, True), again.stderr
    finally:
        for each in servers:
            each.send_signal(signal.SIGINT)
        psutil.wait_procs(servers, 30)


def test_a_port_in_use_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    with socket.create_server((str(cluster.state.host_address), 0)) as taken:
        port = str(taken.getsockname()[1])
        done = trainfleet(
            "cluster", "store", "--name", cluster.name, "--folder", str(tmp_path), "--port", port
        )
    assert (done.returncode, done.stderr.count("error:")) == (2, 1)
    assert f"{port}: Address already in use -> choose another with --port" in " ".join(done.stderr.split())


def test_a_missing_cluster_is_reported() -> None:
    done = trainfleet("cluster", "store", "--name", "nobody")
    assert (done.returncode, "there is no cluster nobody" in done.stderr) == (2, True), done.stderr


@pytest.mark.deep
def test_the_printed_launch_trains(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    with serving(cluster, tmp_path / "store") as shown:
        output = bash(shown.source, f"PATH={PROGRAM.parent}:$PATH {shown.launch}", folder=tmp_path)
        assert "finished" in output
        assert list((tmp_path / "store" / "data" / "runs").glob("tiny-on-cluster/checkpoints/step-*"))
        until(
            lambda: not cluster.kubectl("-n", namespace, "get", "pods", "-o", "name").strip(),
            "the pods are gone",
            120,
        )
