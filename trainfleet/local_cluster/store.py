"""An S3 store with TLS beside the cluster: what `--on kuberay` needs on a machine that has no bucket at hand.

It answers on the address by which pods reach this machine, and runs as long as its command does. Used by
`trainfleet cluster store` and
by the tests of launches. Easy to get wrong: pods keep the authority they were started with, so it outlives
the certificate and the server.
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
from trainfleet.local_cluster.node import TIED
from trainfleet.local_cluster.state import State
from trainfleet.local_cluster.stores.build import gateways

BUCKET = "runs"
SECRET = "s3-keys"
LIMIT_S = 60.0
CHECK_S = 1.0
LINES = 3
"""How many lines the store prints once it answers."""
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}


@dataclass(frozen=True)
class Store:
    """A store that runs: its `address`, the `authority` that vouches for it, the `folder` of its bucket, and
    the server's process.
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
        """What a client on this machine needs, keys included."""
        return {
            "AWS_ENDPOINT_URL": self.address,  # what pyarrow itself reads too, for data
            "AWS_CA_BUNDLE": str(self.authority),
            "AWS_ACCESS_KEY_ID": self.keys[0],
            "AWS_SECRET_ACCESS_KEY": self.keys[1],
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextlib.contextmanager
def gateway(host: str, folder: Path, keys: tuple[str, str], port: int = 0) -> Iterator[Store]:
    """The store, until the end of the block, with its data below `folder`; port 0 takes one that is free.

    Raises:
        InputError: the port is taken.
        MissingToolError: it cannot be built here.
        TrainfleetError: it does not answer; with its last words.
    """
    program = gateways() / "versitygw"
    certificate(host, folder)
    data, sidecar = folder / "data", folder / "sidecar"
    (data / BUCKET).mkdir(parents=True, exist_ok=True)
    sidecar.mkdir(exist_ok=True)
    port = _free(host, port)
    command = [
        *TIED,
        str(program),
        "--access",
        keys[0],
        "--secret",
        keys[1],
        "--port",
        f"{host}:{port}",
        "--quiet",
    ]
    command += [
        "--cert",
        str(folder / "tls.crt"),
        "--key",
        str(folder / "tls.key"),
        "posix",
        "--sidecar",
        str(sidecar),
        str(data),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
        )
    try:
        _await(process, host, port, folder / "log")
        yield Store(f"https://{host}:{port}", folder / "ca.crt", data, keys, process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def detached(name: str, namespace: str, folder: Path, port: int) -> str:
    """Start the store as a process of its own session and return what it printed once it answers.

    Raises:
        TrainfleetError: it ended before it was ready; with its output.
    """
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


def until_gone(pid: int) -> None:
    """Return once the process `pid`, the node's first one, has ended: a store without its cluster serves nobody."""
    while Path(f"/proc/{pid}").exists():
        time.sleep(CHECK_S)


def certificate(host: str, folder: Path) -> None:
    """A certificate for an address by the folder's authority, which is made when it is not there: ca.crt,
    tls.crt and tls.key.
    """

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder, umask=0o077)

    write_whole(folder / "names", f"subjectAltName=IP:{host}\n")
    ec = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    if not (folder / "ca.crt").is_file():
        openssl(
            "req",
            "-x509",
            *ec,
            "-keyout",
            "ca.key",
            "-out",
            "ca.new",
            "-days",
            "365",
            "-subj",
            "/CN=trainfleet-store",
        )
        os.replace(folder / "ca.new", folder / "ca.crt")
    openssl("req", *ec, "-keyout", "tls.key", "-out", "request", "-subj", f"/CN={host}")
    openssl(
        *(
            "x509",
            "-req",
            "-in",
            "request",
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-out",
            "tls.crt",
            "-days",
            "90",
        ),
        *("-extfile", "names"),
    )


def keys_of(folder: Path) -> tuple[str, str]:
    """The store's access key and secret, made once and kept for the owner's eyes."""
    file = folder / "keys.json"
    if not file.is_file():
        write_whole(file, json.dumps(["trainfleet", secrets.token_urlsafe(24)]), 0o600)
    name, secret = json.loads(file.read_text())
    return str(name), str(secret)


def grant(it: State, namespace: str, store: Store) -> None:
    """Make the namespace where it is missing, and in it the Secret that opens the store.

    Raises:
        TrainfleetError: the cluster refuses.
    """
    if not kubectl(it, "get", "namespace", namespace, "--ignore-not-found", "-o", "name").stdout.strip():
        made = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": RESTRICTED},
        }
        kubectl(it, "apply", "-f", "-", given=json.dumps(made))
    keys = {name: store.environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": namespace},
        "stringData": keys,
    }
    kubectl(it, "apply", "-f", "-", given=json.dumps(secret))


def write_environment(it: State, store: Store, file: Path) -> None:
    """Write what a shell sources to use cluster and store, for the owner's eyes."""
    values = {"KUBECONFIG": str(it.kubeconfig), **store.environment}
    write_whole(
        file, "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items()), 0o600
    )


def _free(host: str, port: int) -> int:
    try:
        with socket.create_server((host, port)) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        raise InputError(
            "the store cannot listen there",
            [
                Problem(
                    f"{host}:{port}",
                    os.strerror(error.errno) if error.errno else str(error),
                    "--port says another",
                )
            ],
        ) from error


def _await(process: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return
        time.sleep(0.1)
    said = log.read_text(errors="replace").strip().splitlines()[-2:]
    raise TrainfleetError(
        "the store does not start", [Problem(str(log), " / ".join(said) or "no word from it")]
    )
