"""An S3 store with TLS for the runs on the cluster, for a machine without a bucket.

It listens on the address at which pods reach this machine, and runs as long as its command does.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.local_cluster.kubectl import kubectl
from trainfleet.local_cluster.node import DIE_WITH_PARENT
from trainfleet.local_cluster.state import State
from trainfleet.local_cluster.stores.build import gateways

BUCKET = "runs"
SECRET = "s3-keys"
LIMIT_S = 60.0
POLL_INTERVAL_S = 1.0
LINES = 3
"""How many lines the `store` command prints once the store answers."""
LEVELS = {"enforce": "baseline", "audit": "restricted", "warn": "restricted"}
"""Pod Security levels of a new namespace: those of a platform's `training`, which SkyPilot's pods need."""


@dataclass(frozen=True)
class Store:
    """A running store: its `address`, the `authority` that signed its certificate, the `folder` of its
    bucket, its access key and secret, and the server's process.
    """

    address: str
    authority: Path
    folder: Path
    keys: tuple[str, str] = field(repr=False)
    pid: int

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a client on this machine, keys included."""
        return {
            "AWS_ENDPOINT_URL": self.address,  # pyarrow reads it too, for data
            "AWS_CA_BUNDLE": str(self.authority),
            "AWS_ACCESS_KEY_ID": self.keys[0],
            "AWS_SECRET_ACCESS_KEY": self.keys[1],
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextlib.contextmanager
def gateway(host: str, folder: Path, keys: tuple[str, str], port: int = 0) -> Iterator[Store]:
    """Run the store until the end of the block, with its data below `folder`; port 0 takes a free one.

    Raises:
        InputError: the port is taken.
        MissingToolError: it cannot be built here.
        TrainfleetError: it does not start; with the end of its log.
    """
    program = gateways() / "versitygw"
    issue_certificate(host, folder)
    data, sidecar = folder / "data", folder / "sidecar"
    (data / BUCKET).mkdir(parents=True, exist_ok=True)
    sidecar.mkdir(exist_ok=True)
    port = _free_port(host, port)
    command = [*DIE_WITH_PARENT, str(program), "--access", keys[0], "--secret", keys[1]]
    command += ["--port", f"{host}:{port}", "--quiet"]
    command += ["--cert", str(folder / "tls.crt"), "--key", str(folder / "tls.key")]
    command += ["posix", "--sidecar", str(sidecar), str(data)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
        )
    try:
        _wait_until_listening(process, host, port, folder / "log")
        yield Store(f"https://{host}:{port}", folder / "ca.crt", data, keys, process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def start_detached(name: str, namespace: str, folder: Path, port: int) -> str:
    """Start the store in a session of its own; returns what its command printed once the store answers.

    Raises:
        MissingToolError: it cannot be built here.
        TrainfleetError: it does not start; with its output.
    """
    # Built here, where the user sees it: the first build takes longer than a store may take to start.
    gateways()
    command = [sys.executable, "-m", "trainfleet", "cluster", "store", "--name", name]
    command += ["--namespace", namespace, "--folder", str(folder), "--port", str(port)]
    log = folder / "detached.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
        )
    deadline = time.monotonic() + LIMIT_S
    while (text := log.read_text(errors="replace")).count("\n") < LINES:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise TrainfleetError("the store did not start", [Problem(str(log), text.strip() or "no output")])
        time.sleep(0.1)
    return text.rstrip("\n").replace("Ctrl-C or the cluster", "the cluster")


def wait_for_exit(pid: int) -> None:
    """Return once the process `pid` has ended."""
    while Path(f"/proc/{pid}").exists():
        time.sleep(POLL_INTERVAL_S)


def issue_certificate(host: str, folder: Path) -> None:
    """Issue a certificate for an address: ca.crt, tls.crt and tls.key in `folder`."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder, umask=0o077)

    write_whole(folder / "names", f"subjectAltName=IP:{host}\n")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout")
    # The authority is kept, because running pods trust the one that they were started with.
    if not (folder / "ca.crt").is_file():
        subject = ("-days", "365", "-subj", "/CN=trainfleet-store")
        openssl("req", "-x509", *key, "ca.key", "-out", "ca.new", *subject)
        os.replace(folder / "ca.new", folder / "ca.crt")
    openssl("req", *key, "tls.key", "-out", "request", "-subj", f"/CN={host}")
    authority = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial")
    openssl(
        *("x509", "-req", "-in", "request", *authority),
        *("-out", "tls.crt", "-days", "90", "-extfile", "names"),
    )


def load_keys(folder: Path) -> tuple[str, str]:
    """The store's access key and secret, created on first use; only the owner can read the file."""
    file = folder / "keys.json"
    if not file.is_file():
        write_whole(file, json.dumps(["trainfleet", secrets.token_urlsafe(24)]), 0o600)
    name, secret = json.loads(file.read_text())
    return str(name), str(secret)


def grant_access(state: State, namespace: str, store: Store) -> None:
    """Create the namespace unless it exists, and in it the Secret with the store's keys.

    Raises:
        TrainfleetError: the cluster rejects one of them.
    """
    if not kubectl(state, "get", "namespace", namespace, "--ignore-not-found", "-o", "name").stdout.strip():
        labels = {f"pod-security.kubernetes.io/{mode}": level for mode, level in LEVELS.items()}
        metadata = {"name": namespace, "labels": labels}
        document = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        kubectl(state, "apply", "-f", "-", stdin=json.dumps(document))
    keys = {name: store.environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": namespace},
        "stringData": keys,
    }
    kubectl(state, "apply", "-f", "-", stdin=json.dumps(secret))


def write_environment(state: State, store: Store, file: Path) -> None:
    """Write a file that a shell sources to use cluster and store; only the owner can read it."""
    values = {"KUBECONFIG": str(state.kubeconfig), **store.environment}
    lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
    write_whole(file, lines, 0o600)


def _free_port(host: str, port: int) -> int:
    try:
        with socket.create_server((host, port)) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InputError(
            "the store cannot listen on this port",
            [Problem(f"{host}:{port}", reason, "choose another with --port")],
        ) from error


def _wait_until_listening(process: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return
        time.sleep(0.1)
    lines = log.read_text(errors="replace").strip().splitlines()[-2:]
    raise TrainfleetError(
        "the store does not start", [Problem(str(log), " / ".join(lines) or "the log is empty")]
    )
