"""Runs one of the stores on a free port of the loopback interface until the end of a block, and provides the
environment of its clients.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainfleet.errors import TrainfleetError
from trainfleet.local_cluster.stores.build import azurite, gateways
from trainfleet.process import die_with

LIMIT_S = 60.0
BUCKET = "runs"
KEY, SECRET = "trainfleet", "loopback-only"
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's well-known account and key, from its documentation; they give access to nothing else."""


@dataclass(frozen=True)
class Server:
    """A running store: the `url` of its bucket, its `port`, the `folder` of its data, and
    `environment(port)`, which a client needs.
    """

    kind: str
    url: str
    port: int
    folder: Path
    environment: Callable[[int], dict[str, str]] = field(repr=False)


def s3_environment(port: int) -> dict[str, str]:
    return {
        "TRAINFLEET_S3_ENDPOINT": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def gcs_environment(port: int) -> dict[str, str]:
    return {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}


def azure_environment(port: int) -> dict[str, str]:
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
        "TRAINFLEET_AZURE_ENDPOINT": f"http://127.0.0.1:{port}",
    }


ENVIRONMENTS = {"s3": s3_environment, "gs": gcs_environment, "az": azure_environment}


@contextlib.contextmanager
def start(kind: str, folder: Path, front: int | None = None) -> Iterator[Server]:
    """Run a store of kind `s3`, `gs` or `az` with an empty bucket, its data below `folder`.

    Args:
        front: the port of a proxy in front of it, for a server that returns its own address (GCS).

    Raises:
        MissingToolError: it cannot be built here.
        TrainfleetError: it does not answer.
    """
    port = free_port()
    data = folder / "data"
    (data / BUCKET).mkdir(parents=True)
    command = _command(kind, folder, data, port, front or port)
    die_with_parent = functools.partial(die_with, os.getpid())
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )
    try:
        _wait(process, port, folder / "log")
        if kind == "az":
            _create_container(port)
        yield Server(kind, f"{kind}://{BUCKET}", port, data, ENVIRONMENTS[kind])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _command(kind: str, folder: Path, data: Path, port: int, public_port: int) -> list[str]:
    """The command line of a store of this kind."""
    if kind == "s3":
        sidecar = folder / "sidecar"
        sidecar.mkdir()
        command = [str(gateways() / "versitygw"), "--access", KEY, "--secret", SECRET]
        command += ["--port", f"127.0.0.1:{port}", "--quiet"]
        return [*command, "posix", "--sidecar", str(sidecar), str(data)]
    if kind == "gs":
        command = [str(gateways() / "fake-gcs-server"), "-scheme", "http", "-host", "127.0.0.1"]
        command += ["-port", str(port), "-backend", "filesystem", "-filesystem-root", str(data)]
        return [*command, "-external-url", f"http://127.0.0.1:{public_port}", "-log-level", "error"]
    command = [*azurite(), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(data)]
    return [*command, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    lines = log.read_text(errors="replace").strip().splitlines()[-3:]
    raise TrainfleetError(f"a store does not start on port {port}: {' / '.join(lines) or 'its log is empty'}")


def _create_container(port: int) -> None:
    from pyarrow.fs import AzureFileSystem

    address = f"127.0.0.1:{port}"
    client = AzureFileSystem(
        AZURE_ACCOUNT,
        account_key=AZURE_KEY,
        blob_storage_authority=address,
        dfs_storage_authority=address,
        blob_storage_scheme="http",
        dfs_storage_scheme="http",
    )
    client.create_dir(BUCKET)
