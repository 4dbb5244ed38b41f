"""Object store servers with TLS at an address that pods reach.

S3: a gateway account that owns one bucket. Azure: a SAS token for one container of Azurite. GCS: the emulator
does not check credentials, so only TLS is tested.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trainfleet.local_cluster.store import issue_certificate
from trainfleet.local_cluster.stores.build import azurite, gateways
from trainfleet.local_cluster.stores.servers import AZURE_ACCOUNT, AZURE_KEY, BUCKET, KEY, SECRET

OTHER = "other"
"""A bucket that a run's credentials do not cover."""
KINDS = ("s3", "gs", "az")


@dataclass(frozen=True)
class CloudStore:
    """A running store."""

    kind: str
    host: str
    port: int
    authority: Path
    """The CA certificate, in the folder of the server's other files."""
    keys: dict[str, str] = field(repr=False)
    """The secret variables of a run."""
    master: dict[str, str] = field(repr=False)
    """The secret variables of the store's owner."""

    @property
    def folder(self) -> Path:
        """Where the server keeps its data and log."""
        return self.authority.parent

    @property
    def url(self) -> str:
        return f"{self.kind}://{BUCKET}"

    @property
    def place(self) -> dict[str, str]:
        """Variables with the endpoint and the CA certificate. None is secret."""
        address = f"https://{self.host}:{self.port}"
        trust = {"AWS_CA_BUNDLE": str(self.authority)}
        if self.kind == "s3":
            return {
                **trust,
                "AWS_ENDPOINT_URL": address,
                "AWS_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
            }
        trust |= {"SSL_CERT_FILE": str(self.authority)}
        if self.kind == "gs":
            return {**trust, "STORAGE_EMULATOR_HOST": address}
        return {**trust, "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT, "TRAINFLEET_AZURE_ENDPOINT": address}

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a run on this machine."""
        return {**self.place, **self.keys}

    def names(self, bucket: str) -> list[str]:
        """Everything in a bucket, as its owner sees it."""
        found: list[str] = json.loads(self._as_owner(_LIST, bucket))
        return found

    def fill(self, folder: Path, under: str) -> None:
        """Copy a folder's files into the run's bucket."""
        self._as_owner(_FILL, str(folder), f"{self.url}/{under}")

    def _as_owner(self, program: str, *arguments: str) -> str:
        # A new process: pyarrow's GCS and Azure clients read SSL_CERT_FILE when pyarrow is imported.
        environment = (
            {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "AZURE_"))}
            | self.place
            | self.master
        )
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=environment | {"KIND": self.kind},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


_LIST = """
import json, os, sys
from trainfleet.training.stores import RetryPolicy, parse
from trainfleet.training.stores.clouds import connect
print(json.dumps(sorted(connect(parse(f"{os.environ['KIND']}://{sys.argv[1]}"), RetryPolicy()).sizes(""))))
"""
_FILL = """
import sys
from pathlib import Path
from trainfleet.training.stores import RetryPolicy, parse
from trainfleet.training.stores.clouds import connect
store = connect(parse(sys.argv[2]), RetryPolicy())
for file in sorted(Path(sys.argv[1]).iterdir()):
    stream = store.create(file.name)
    stream.write(file.read_bytes())
    stream.close()
"""


@contextlib.contextmanager
def cloud_store(kind: str, host: str, folder: Path) -> Iterator[CloudStore]:
    """Run a store until the end of the block, with the run's bucket and a second one."""
    issue_certificate(host, folder)
    with socket.create_server((host, 0)) as probe:
        port = int(probe.getsockname()[1])
    for bucket in (BUCKET, OTHER):
        (folder / "data" / bucket).mkdir(parents=True)
    command = {"s3": _s3_gateway, "gs": _gcs_emulator, "az": _azurite}[kind](host, port, folder)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
        )
    try:
        _answers(process, host, port, folder / "log")
        make = {"s3": _s3_account, "gs": _without_credentials, "az": _container_signature}[kind]
        yield make(host, port, folder / "ca.crt")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _s3_gateway(host: str, port: int, folder: Path) -> list[str]:
    """The command that serves S3, with an account for each run."""
    for each in ("sidecar", "people"):
        (folder / each).mkdir()
    return [
        str(gateways() / "versitygw"),
        *("--access", KEY, "--secret", SECRET),
        *("--port", f"{host}:{port}", "--quiet"),
        *("--cert", str(folder / "tls.crt"), "--key", str(folder / "tls.key")),
        *("--iam-dir", str(folder / "people")),
        *("posix", "--sidecar", str(folder / "sidecar"), str(folder / "data")),
    ]


def _gcs_emulator(host: str, port: int, folder: Path) -> list[str]:
    return [
        str(gateways() / "fake-gcs-server"),
        *("-scheme", "https", "-host", host, "-port", str(port), "-log-level", "error"),
        *("-cert-location", str(folder / "tls.crt"), "-private-key-location", str(folder / "tls.key")),
        *("-backend", "filesystem", "-filesystem-root", str(folder / "data")),
        *("-external-url", f"https://{host}:{port}", "-public-host", f"{host}:{port}"),
    ]


def _azurite(host: str, port: int, folder: Path) -> list[str]:
    return [
        *azurite(),
        *("--blobHost", host, "--blobPort", str(port), "--location", str(folder / "azurite")),
        *("--cert", str(folder / "tls.crt"), "--key", str(folder / "tls.key")),
        *("--silent", "--skipApiVersionCheck", "--disableTelemetry"),
    ]


def _s3_account(host: str, port: int, authority: Path) -> CloudStore:
    """An account of the gateway that owns one bucket and has no other rights."""
    name, secret = "run", secrets.token_urlsafe(24)
    admin = [
        str(gateways() / "versitygw"),
        "admin",
        "--allow-insecure",
        "--access",
        KEY,
        "--secret",
        SECRET,
        "--endpoint-url",
        f"https://{host}:{port}",
    ]
    for command in (
        ["create-user", "--access", name, "--secret", secret, "--role", "user"],
        ["change-bucket-owner", "--bucket", BUCKET, "--owner", name],
    ):
        done = subprocess.run([*admin, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
    keys = {"AWS_ACCESS_KEY_ID": name, "AWS_SECRET_ACCESS_KEY": secret}
    return CloudStore(
        "s3", host, port, authority, keys, {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    )


def _without_credentials(host: str, port: int, authority: Path) -> CloudStore:
    return CloudStore("gs", host, port, authority, {}, {})


def _container_signature(host: str, port: int, authority: Path) -> CloudStore:
    """A SAS token that reads, writes, lists and deletes in one container, over TLS, for one day."""
    store = CloudStore("az", host, port, authority, {}, {"AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY})
    for container in (BUCKET, OTHER):
        store._as_owner(_CONTAINER, container)
    return CloudStore(
        "az",
        host,
        port,
        authority,
        {"AZURE_STORAGE_SAS_TOKEN": f"?{signature(BUCKET, datetime.now(UTC) + timedelta(days=1))}"},
        store.master,
    )


def signature(container: str, until: datetime) -> str:
    """A service SAS for a container.

    Source: "Create a service SAS", version 2020-12-06 and later, of Azure's REST reference.
    """
    parameters = {
        "sp": "racwdl",
        "se": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "spr": "https",
        "sv": "2022-11-02",
        "sr": "c",
    }
    start = identifier = addresses = snapshot = scope = ""
    fields = [
        parameters["sp"],
        start,
        parameters["se"],
        f"/blob/{AZURE_ACCOUNT}/{container}",
        identifier,
        addresses,
        parameters["spr"],
        parameters["sv"],
        parameters["sr"],
    ]
    headers = [""] * 5
    text = "\n".join([*fields, snapshot, scope, *headers])
    signed = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    return urllib.parse.urlencode({**parameters, "sig": base64.b64encode(signed).decode()})


_CONTAINER = """
import sys
from trainfleet.training.stores import RetryPolicy, parse
from trainfleet.training.stores.clouds import connect
connect(parse(f"az://{sys.argv[1]}"), RetryPolicy()).client.create_dir(sys.argv[1])
"""


def _answers(process: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
    deadline = time.monotonic() + 180
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, "the store does not answer"
        time.sleep(0.1)
