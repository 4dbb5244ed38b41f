"""An S3 gateway with TLS on the address that the cluster's pods reach this machine by, with the keys in a Secret of the namespace."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.stores.build import gateways
from tools.stores.servers import BUCKET, KEY, SECRET


@dataclass(frozen=True)
class Store:
    """The gateway; `environment` is what a client on this machine needs, keys included."""

    address: str
    authority: Path
    folder: Path
    pid: int
    """Of the server, for whoever wants it away for a while."""

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.address,  # what pyarrow itself reads too, for data
            "AWS_CA_BUNDLE": str(self.authority),
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}"


@contextlib.contextmanager
def gateway(host: str, folder: Path) -> Iterator[Store]:
    """The gateway, until the end of the block."""
    certificate(host, folder)
    data, sidecar = folder / "data", folder / "sidecar"
    (data / BUCKET).mkdir(parents=True)
    sidecar.mkdir()
    with socket.create_server((host, 0)) as probe:
        port = probe.getsockname()[1]
    command = [str(gateways() / "versitygw"), "--access", KEY, "--secret", SECRET, "--port", f"{host}:{port}", "--quiet"]
    command += ["--cert", str(folder / "tls.crt"), "--key", str(folder / "tls.key"), "posix", "--sidecar", str(sidecar), str(data)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
                break
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "the gateway does not answer"
            time.sleep(0.1)
        yield Store(f"https://{host}:{port}", folder / "ca.crt", data, process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def certificate(host: str, folder: Path) -> None:
    """An authority, and a certificate by it for an address: ca.crt, tls.crt and tls.key in the folder."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    (folder / "names").write_text(f"subjectAltName=IP:{host}\n")
    ec = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=test-authority")
    openssl("req", *ec, "-keyout", "tls.key", "-out", "request", "-subj", f"/CN={host}")
    openssl(
        *("x509", "-req", "-in", "request", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", "tls.crt", "-days", "2"),
        *("-extfile", "names"),
    )
