"""Starts one of the stores on a free port of the loopback, with the environment that reaches it; it ends with
its block.

Used by tests and benchmarks. Easy to get wrong: a server that answers is not always one that is ready, so a
bucket is asked for.
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
"""Azurite's own account and key, which its documentation gives; they open nothing else."""


@dataclass(frozen=True)
class Server:
    """A store that runs: `url` of its bucket, the `port` on the loopback, and how a client is told:
    `environment(port)`.
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


@contextlib.contextmanager
def start(kind: str, folder: Path, front: int | None = None) -> Iterator[Server]:
    """A store of kind `s3`, `gs` or `az` with an empty bucket, its data below `folder`.

    Args:
        front: the port of a proxy before it, for a server that names its own address in its answers (GCS).

    Raises:
        MissingToolError: it cannot be built here.
        TrainfleetError: it does not answer.
    """
    port = free_port()
    data = folder / "data"
    (data / BUCKET).mkdir(parents=True)
    match kind:
        case "s3":
            command = [
                str(gateways() / "versitygw"),
                "--access",
                KEY,
                "--secret",
                SECRET,
                "--port",
                f"127.0.0.1:{port}",
                "--quiet",
            ]
            command += ["posix", "--sidecar", str(_made(folder / "sidecar")), str(data)]
            environment = s3_environment
        case "gs":
            command = [
                str(gateways() / "fake-gcs-server"),
                "-scheme",
                "http",
                "-host",
                "127.0.0.1",
                "-port",
                str(port),
            ]
            command += [
                "-backend",
                "filesystem",
                "-filesystem-root",
                str(data),
                "-external-url",
                f"http://127.0.0.1:{front or port}",
                "-log-level",
                "error",
            ]
            environment = gcs_environment
        case _:
            command = [
                *azurite(),
                "--blobHost",
                "127.0.0.1",
                "--blobPort",
                str(port),
                "--location",
                str(data),
            ]
            command += ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
            environment = azure_environment
    bound = functools.partial(die_with, os.getpid())  # a test process that crashes takes its servers along
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
            preexec_fn=bound,  # noqa: PLW1509
        )
    try:
        _wait(process, port, folder / "log")
        if kind == "az":
            _make_container(port)
        yield Server(kind, f"{kind}://{BUCKET}", port, data, environment)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    said = log.read_text(errors="replace").strip().splitlines()[-3:]
    raise TrainfleetError(f"a store does not start on port {port}: {' / '.join(said) or 'no word from it'}")


def _make_container(port: int) -> None:
    from pyarrow.fs import AzureFileSystem

    where = f"127.0.0.1:{port}"
    client = AzureFileSystem(
        AZURE_ACCOUNT,
        account_key=AZURE_KEY,
        blob_storage_authority=where,
        dfs_storage_authority=where,
        blob_storage_scheme="http",
        dfs_storage_scheme="http",
    )
    client.create_dir(BUCKET)
