"""An image registry with TLS and a login: Debian's docker-registry at an address of this machine."""

from __future__ import annotations

import base64
import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.debian import unpacked
from trainfleet.local_cluster.store import issue_certificate

USER, PASSWORD = "pusher", "not-a-secret"
# `htpasswd -nbB -C 5 pusher not-a-secret`: the server accepts bcrypt only.
HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuuVPNOToLP9MHdthRCXkVoiIF0qNKnk2G\n"
CONFIG = """\
version: 0.1
log: {{level: info, accesslog: {{disabled: false}}}}
storage:
  filesystem: {{rootdirectory: {folder}/data}}
http:
  addr: "{address}"
  tls: {{certificate: {folder}/tls.crt, key: {folder}/tls.key}}
auth:
  htpasswd: {{realm: tests, path: {folder}/htpasswd}}
"""


@dataclass(frozen=True)
class Registry:
    """A running registry."""

    address: str
    """HOST:PORT"""
    folder: Path

    @property
    def authority(self) -> Path:
        """The CA certificate that signed the server's."""
        return self.folder / "ca.crt"

    @property
    def login(self) -> str:
        """What `auth` is in a containers-auth.json or a Docker config."""
        return base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    def requests(self) -> list[str]:
        """The server's access log, such as `PUT /v2/training/manifests/TAG`."""
        rows = (self.folder / "log").read_text(errors="replace").splitlines()
        return [row.split('"')[1].removesuffix(" HTTP/1.1") for row in rows if ' HTTP/1.1" ' in row]


@contextlib.contextmanager
def registry(host: str, folder: Path) -> Iterator[Registry]:
    """Run a registry until the end of the block. Skips the test if Debian's package cannot be downloaded."""
    program = unpacked(folder, "docker-registry") / "usr" / "bin" / "docker-registry"
    issue_certificate(host, folder)
    with socket.create_server((host, 0)) as probe:
        port = int(probe.getsockname()[1])
    address = f"{host}:{port}"
    (folder / "htpasswd").write_text(HTPASSWD)
    (folder / "config.yml").write_text(CONFIG.format(folder=folder, address=address))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", folder / "config.yml"],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(host, port, process, folder / "log")
        yield Registry(address, folder)
    finally:
        process.kill()
        process.wait()


def _wait(host: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return
        ended = process.poll() is not None or time.monotonic() > deadline
        assert not ended, log.read_text()[-2000:]
        time.sleep(0.1)
