"""The signer of Ray's certificates, run as its container runs it, with a stand-in for the API server."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.infra.kubernetes.api_server import ApiServer, api_server
from trainfleet.infra.kubernetes.ray_signer import program
from trainfleet.infra.kubernetes.scripts.ray_signer.api import Api
from trainfleet.infra.kubernetes.scripts.ray_signer.signer import POD_NAME, POD_UID, Settings, Signer

SCRIPTS = Path(str(files("trainfleet.infra.kubernetes.scripts")))
SECRET = "/api/v1/namespaces/ray-certificates/secrets/ray-ca"
FORMER = "/api/v1/namespaces/training/secrets/ray-ca"
PUBLIC = "/api/v1/namespaces/training/configmaps/ray-ca"
PODS = "/api/v1/namespaces/training/pods"
AUDIENCE = "ray-signer.trainfleet"
TRAINER = "system:serviceaccount:training:trainer"
TOKEN = "the-signers-own-token"


@dataclass
class Place:
    """The API server, and the environment of a signer that uses it."""

    api: ApiServer
    folder: Path
    signers: list[Signer] = field(default_factory=list)

    def env(self, **changes: str) -> dict[str, str]:
        own = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.folder / "program"),
            "NAMESPACE": "ray-certificates",
            "TRAINING_NAMESPACE": "training",
            "CA_NAME": "ray-ca",
            "SERVICE": "localhost",
            "AUDIENCE": AUDIENCE,
            "PORT": "0",
            "CREATE_CA": "yes",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.api.port),
            "ACCOUNT": str(self.folder / "account"),
        }
        return own | changes

    def signer(self, **changes: str) -> Signer:
        """A signer in this process, which has not read its CA yet."""
        env = self.env(**changes)
        self.signers.append(Signer(Api(env), Settings.read(env)))
        return self.signers[-1]

    def add_pod(self, name: str, *addresses: str, **changes: Any) -> str:
        """A pod, and its token for the signer."""
        status = {"phase": "Pending", "podIPs": [{"ip": each} for each in addresses]}
        pod: dict[str, Any] = {"metadata": {"name": name, "uid": f"{name}-uid"}, "spec": {}, "status": status}
        for part, what in changes.items():
            pod[part] |= what
        self.api.objects[f"{PODS}/{name}"] = pod
        self.api.reviews[f"token-of-{name}"] = review(name)
        return f"token-of-{name}"

    @property
    def authority(self) -> bytes:
        return str(self.api.objects[PUBLIC]["data"]["ca.crt"]).encode()


def review(pod: str, user: str = TRAINER, audience: str = AUDIENCE, **extra: list[str]) -> dict[str, Any]:
    """The status of a TokenReview."""
    bound = {POD_NAME: [pod], POD_UID: [f"{pod}-uid"]} | extra
    return {"authenticated": True, "audiences": [audience], "user": {"username": user, "extra": bound}}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with api_server(tmp_path, TOKEN) as api:
        (tmp_path / "account").mkdir()
        (tmp_path / "account" / "token").write_text(TOKEN)
        shutil.copy(api.certificate, tmp_path / "account" / "ca.crt")
        package = tmp_path / "program" / "ray_signer"
        package.mkdir(parents=True)
        for name, text in program().items():
            (package / name).write_text(text)
        one = Place(api, tmp_path)
        yield one
        for signer in one.signers:
            signer.close()


@contextmanager
def serving(place: Place, **changes: str) -> Iterator[tuple[int, list[str]]]:
    """The signer as its container runs it. Its port, and what it printed until then."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ray_signer"],
        env=place.env(**changes),
        cwd=place.folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith("serving on port "):
                break
        yield int(lines[-1].rpartition(" ")[2]), lines
    finally:
        process.terminate()
        assert process.wait(timeout=20) == 0
        process.stdout.close()


def post(
    place: Place, port: int, token: str, body: bytes, source: str = "127.0.0.1", path: str = "/sign"
) -> tuple[int, str]:
    """Send a request from an address of the loopback network."""
    trust = ssl.create_default_context(cadata=place.authority.decode())
    connection = http.client.HTTPSConnection("localhost", port, timeout=20, context=trust)
    connection.sock = trust.wrap_socket(
        socket.create_connection(("127.0.0.1", port), 20, (source, 0)), server_hostname="localhost"
    )
    try:
        connection.request("POST", path, body, {"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def shown(text: str, *what: str) -> str:
    """What openssl prints of a certificate."""
    flags = ["openssl", "x509", "-noout", *what]
    return subprocess.run(flags, input=text, check=True, capture_output=True, text=True).stdout


def setup_folder(place: Place, token: str) -> Path:
    """What the pod's volume holds: the program, the CA's certificate and the token."""
    folder = place.folder / f"setup-{token}"
    folder.mkdir()
    shutil.copy(SCRIPTS / "certificate.py", folder)
    (folder / "ca.crt").write_bytes(place.authority)
    (folder / "token").write_text(token)
    return folder


def run_init(setup: Path, port: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """The pod's init container."""
    folder.mkdir()
    url = f"https://localhost:{port}/sign"
    env = {"PATH": os.environ["PATH"], "RAY_SIGNER": url, "RAY_TLS_FOLDER": str(folder)}
    command = [sys.executable, str(setup / "certificate.py")]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)
