"""Ray's certificates: the authority is made once and stored by a real request, and two pods believe each
other by a real handshake.
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from threading import Thread

import pytest

from tests.infra.kubernetes.api_server import ApiServer, api_server
from tests.infra.kubernetes.planned import plan
from trainfleet.infra.kubernetes.certificates import IMAGE
from trainfleet.infra.kubernetes.names import RAY_CA_MOUNT, RAY_CA_SECRET, RAY_TLS_ENVIRONMENT, RAY_TLS_MOUNT
from trainfleet.infra.kubernetes.scripts import ray_ca

SCRIPTS = Path(str(files("trainfleet.infra.kubernetes.scripts")))
SECRETS = "/api/v1/namespaces/training/secrets"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an authority, as a pod has it mounted."""
    folder = tmp_path_factory.mktemp("authority")
    ray_ca.make(folder)
    return folder


def run_job(server: ApiServer, account: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "SECRET": RAY_CA_SECRET,
        "NAMESPACE": "training",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "ACCOUNT": str(account),
    }
    return subprocess.run(
        [sys.executable, str(SCRIPTS / "ray_ca.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def account_of(server: ApiServer, folder: Path, token: str) -> Path:
    folder.mkdir()
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_bytes(server.certificate.read_bytes())
    return folder


def test_the_job_makes_the_authority_once_and_keeps_it(tmp_path: Path) -> None:
    with api_server(tmp_path, "the-token") as server:
        account = account_of(server, tmp_path / "account", "the-token")
        first = run_job(server, account)
        made = dict(server.objects)
        second = run_job(server, account)
    assert (first.returncode, first.stdout) == (0, "secret training/ray-ca: created\n"), first.stderr
    assert (second.returncode, second.stdout) == (
        0,
        "secret training/ray-ca: kept the existing one\n",
    ), second.stderr
    assert server.objects == made
    secret = made[f"{SECRETS}/{RAY_CA_SECRET}"]
    assert secret["type"] == "kubernetes.io/tls"
    assert base64.b64decode(secret["data"]["tls.key"]).startswith(b"-----BEGIN PRIVATE KEY-----")
    assert "PRIVATE" not in first.stdout + first.stderr


def test_a_refused_job_fails_so_that_it_is_tried_again(tmp_path: Path) -> None:
    with api_server(tmp_path, "the-token") as server:
        refused = run_job(server, account_of(server, tmp_path / "account", "another"))
    assert refused.returncode == 1
    assert "refused with status 401" in refused.stdout
    assert not server.objects


def pod(authority: Path, folder: Path, address: str) -> Path:
    """Run a pod's init container."""
    folder.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "POD_IP": address,
        "RAY_CA_FOLDER": str(authority),
        "RAY_TLS_FOLDER": str(folder),
    }
    subprocess.run(["sh", str(SCRIPTS / "certificate.sh")], env=environment, check=True, capture_output=True)
    return folder


def handshake(server: Path, client: Path, name: str) -> bool:
    """Whether a client that checks the name talks to a server that asks for the client's certificate too."""
    at_server, at_client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    at_server.verify_mode = ssl.CERT_REQUIRED
    for context, folder in ((at_server, server), (at_client, client)):
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        context.load_verify_locations(folder / "ca.crt")
    one, other = socket.socketpair()

    def serve() -> None:
        try:
            with at_server.wrap_socket(one, server_side=True) as talk:
                talk.sendall(b"hello")
        except (ssl.SSLError, OSError):
            one.close()

    thread = Thread(target=serve)
    thread.start()
    try:
        with at_client.wrap_socket(other, server_hostname=name) as talk:
            return talk.recv(5) == b"hello"
    except ssl.SSLError:
        return False
    finally:
        other.close()
        thread.join()


@pytest.mark.parametrize(
    "name",
    [
        "10.40.3.7",
        "localhost",
        "127.0.0.1",
        "run-1-head-svc.training.svc.cluster.local",
        "run-1-head-svc.training.svc",
    ],
)
def test_pods_believe_each_other_by_address_and_by_the_heads_service(
    authority: Path, tmp_path: Path, name: str
) -> None:
    head, worker = (
        pod(authority, tmp_path / "head", "10.40.3.7"),
        pod(authority, tmp_path / "worker", "10.40.3.8"),
    )
    assert handshake(head, worker, name)


def test_a_pod_is_not_believed_under_anothers_address_nor_by_another_authority(
    authority: Path, tmp_path: Path
) -> None:
    head, worker = (
        pod(authority, tmp_path / "head", "10.40.3.7"),
        pod(authority, tmp_path / "worker", "10.40.3.8"),
    )
    assert not handshake(head, worker, "10.40.3.8")
    (tmp_path / "other").mkdir()
    ray_ca.make(tmp_path / "other")
    stranger = pod(tmp_path / "other", tmp_path / "stranger", "10.40.3.9")
    assert not handshake(head, stranger, "10.40.3.7")


def test_the_folders_of_the_script_are_those_that_launchers_mount() -> None:
    text = (SCRIPTS / "certificate.sh").read_text()
    assert f":-{RAY_CA_MOUNT}}}" in text
    assert f":-{RAY_TLS_MOUNT}}}" in text
    assert {Path(path).name for key, path in RAY_TLS_ENVIRONMENT.items() if key != "RAY_USE_TLS"} == {
        "tls.crt",
        "tls.key",
        "ca.crt",
    }


def test_the_jobs_account_may_create_secrets_of_one_namespace_and_nothing_else() -> None:
    planned = plan()
    role = planned.inputs["lab-ray-ca"]
    assert role["metadata"]["namespace"] == "training"
    assert role["rules"] == [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}]
    template = planned.inputs["lab-ray-ca-job"]["spec"]["template"]["spec"]
    assert template["serviceAccountName"] == "ray-ca"
    assert template["securityContext"]["runAsNonRoot"] is True
    assert planned.inputs["lab-ray-ca-job"]["metadata"]["annotations"] == {"pulumi.com/skipAwait": "true"}


def test_the_job_uses_the_training_image_where_there_is_no_registry() -> None:
    cases = [
        ("r.example/t", "", IMAGE),
        ("r.example/t", "mine:1", IMAGE),
        ("", "", IMAGE),
        ("", "mine:1", "mine:1"),
    ]
    for registry, image, expected in cases:
        job = plan({"ray": {"image": image}}, registry=registry).inputs["lab-ray-ca-job"]
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["image"] == expected, (registry, image)


def test_cert_manager_writes_the_same_secret() -> None:
    planned = plan({"layer": {"certificates": "cert-manager"}})
    assert "lab-ray-ca-job" not in planned.types
    certificate = planned.custom("Certificate")[RAY_CA_SECRET]["spec"]
    assert (certificate["isCA"], certificate["secretName"], certificate["issuerRef"]["name"]) == (
        True,
        RAY_CA_SECRET,
        "ray-self-signed",
    )
    assert planned.custom("Issuer")["ray-self-signed"]["spec"] == {"selfSigned": {}}
    assert planned.custom("Issuer")["ray"]["spec"] == {"ca": {"secretName": RAY_CA_SECRET}}
    assert planned.values("lab-cert-manager")["crds"] == {"enabled": True, "keep": False}


@pytest.mark.parametrize("choice", ["own-ca", "cert-manager"])
def test_no_private_key_is_in_any_input(choice: str) -> None:
    texts = list(plan({"layer": {"certificates": choice}}).strings())
    assert not [text for text in texts if "PRIVATE KEY-----" in text]
