"""Ray on a real cluster is secured: node certificates, a token for the dashboard, no secret in its output."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cluster.conftest import until
from tests.cluster.launches import LONG, PROGRAM, Launch, Place, launched, place
from tests.cluster.pods import pod
from trainfleet.infra.kubernetes import names
from trainfleet.infra.outputs.contract import RayCertificates
from trainfleet.local_cluster.images import LOCAL
from trainfleet.local_cluster.stores.servers import SECRET
from trainfleet.training.launch.platform_outputs import external_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]
__all__ = ["place"]
SCRIPT = Path(names.__file__).parent / "scripts" / "certificate.sh"
RUN = "closed"


def platform(place: Place) -> Path:
    """Create a CA for Ray in the namespace, and a file with the outputs of a platform that uses it."""
    certificate, key = place.folder / "ray-ca.crt", place.folder / "ray-ca.key"
    kind = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-sha256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=ray-ca",
    ]
    ends = [
        "-addext",
        "basicConstraints=critical,CA:TRUE",
        "-addext",
        "keyUsage=critical,keyCertSign,cRLSign",
    ]
    command = ["openssl", "req", "-x509", *kind, *ends, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    there = {"namespace": place.namespace}
    place.cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": names.RAY_CA_SECRET, **there},
            "stringData": {"tls.crt": certificate.read_text(), "tls.key": key.read_text()},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": names.RAY_TLS_CONFIG, **there},
            "data": {names.RAY_TLS_SCRIPT: SCRIPT.read_text()},
        },
    )
    certificates = RayCertificates(
        ca_secret=names.RAY_CA_SECRET,
        ca_mount=names.RAY_CA_MOUNT,
        config=names.RAY_TLS_CONFIG,
        config_mount=names.RAY_TLS_CONFIG_MOUNT,
        script=names.RAY_TLS_SCRIPT,
        mount=names.RAY_TLS_MOUNT,
        environment=names.RAY_TLS_ENVIRONMENT,
    )
    outputs = external_cluster(place.cluster.state.context, place.namespace, LOCAL, f"{place.store.url}/runs")
    secured = outputs.model_copy(
        update={"ray_tls": True, "ray_certificates": certificates, "ray_version": "2.60.0"}
    )
    file = place.folder / "outputs.json"
    file.write_text(secured.model_dump_json())
    return file


@pytest.mark.slow
def test_ray_requires_certificates_and_a_token_and_shows_no_secret(place: Place) -> None:
    with launched(place, RUN, *LONG, stack=platform(place)) as launch:
        launch.reach(10)
        _ray_rejects_a_client_without_certificate(place)
        _dashboard_rejects_another_namespace(place)
        token = _dashboard_accepts_the_token(place)
        _no_pod_is_privileged(place)
        there = place.kubectl("get", "rayjob,raycluster,configmap,pod,job,service,event", "-o", "yaml")
        there += "".join(
            place.kubectl("logs", name, "--all-containers", "--tail=-1") for name in place.names("pod")
        )
        assert launch.interrupt() == 130, launch.output
        _no_secret_is_shown(place, launch, there, token)
    place.clean()


def _head(place: Place) -> str:
    return place.kubectl(
        "get", "pod", "-l", "ray.io/node-type=head", "-o", "jsonpath={.items[0].status.podIP}"
    )


def _ray_rejects_a_client_without_certificate(place: Place) -> None:
    folder, authority = place.folder, place.folder / "ray-ca.crt"
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=ray"]
    sign = ["-CA", str(authority), "-CAkey", str(folder / "ray-ca.key"), "-CAcreateserial", "-days", "2"]
    for command in (
        ["openssl", "req", *ec, "-keyout", str(folder / "own.key"), "-out", str(folder / "request")],
        ["openssl", "x509", "-req", "-in", str(folder / "request"), *sign, "-out", str(folder / "own.crt")],
    ):
        subprocess.run(command, check=True, capture_output=True)
    trusting = ssl.create_default_context(cafile=str(authority))
    trusting.check_hostname = False
    trusting.set_alpn_protocols(["h2"])  # gRPC closes a connection without it
    assert not _answer(_head(place), trusting), "Ray accepts a client without a certificate"
    trusting.load_cert_chain(folder / "own.crt", folder / "own.key")
    assert _answer(_head(place), trusting), "Ray rejects a client with a certificate"


def _answer(host: str, trusting: ssl.SSLContext) -> bytes:
    """The first byte from Ray's control store. Empty if it closes the connection."""
    refusals = contextlib.suppress(ssl.SSLError, ConnectionError)
    with (
        refusals,
        socket.create_connection((host, 6379), 20) as plain,
        trusting.wrap_socket(plain) as wrapped,
    ):
        wrapped.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        return wrapped.recv(1)
    return b""


def _dashboard_rejects_another_namespace(place: Place) -> None:
    elsewhere = f"{place.namespace}-else"
    service = place.names("service", "ray.io/node-type=head")[0].partition("/")[2]
    url = f"http://{service}.{place.namespace}.svc.cluster.local:8265/api/jobs/"
    script = f"/busybox timeout 20 /busybox wget -S -O - {url} 2>&1"
    place.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": elsewhere}})
    try:
        place.cluster.apply({**pod("asks", script), "metadata": {"name": "asks", "namespace": elsewhere}})
        kubectl = place.cluster.kubectl
        over = ("get", "pod", "asks", "-o", "jsonpath={.status.phase}")
        until(lambda: kubectl("-n", elsewhere, *over) in ("Failed", "Succeeded"), "an answer", 120)
        log = kubectl("-n", elsewhere, "logs", "asks")
    finally:
        place.cluster.kubectl("delete", "namespace", elsewhere, "--wait=false")
    assert "HTTP/1.1 401" in log or "HTTP/1.1 403" in log, log
    assert "submission_id" not in log


def _dashboard_accepts_the_token(place: Place) -> str:
    """Check that the forwarded dashboard requires the token, and return the token."""
    command = [PROGRAM, "dashboard", RUN, *place.where, "--port", "0", "--token", "--json"]
    board = subprocess.Popen(command, env=place.env, stdout=subprocess.PIPE, text=True)
    try:
        assert board.stdout is not None
        dashboard = json.loads("".join(iter(board.stdout.readline, "}\n")) + "}")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{dashboard['address']}/api/jobs/", timeout=30)
        assert caught.value.code in (401, 403)
        asked = urllib.request.Request(
            f"{dashboard['address']}/api/jobs/", headers={"Authorization": f"Bearer {dashboard['token']}"}
        )
        assert b"submission_id" in urllib.request.urlopen(asked, timeout=30).read()
    finally:
        board.terminate()
        board.wait()
    return str(dashboard["token"])


def _no_pod_is_privileged(place: Place) -> None:
    for each in json.loads(place.kubectl("get", "pod", "-o", "json"))["items"]:
        spec = each["spec"]
        assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
        assert not any("hostPath" in volume for volume in spec["volumes"])
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            rights = container["securityContext"]
            assert not rights.get("privileged")
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"] == {"drop": ["ALL"]}


def _no_secret_is_shown(place: Place, launch: Launch, there: str, token: str) -> None:
    run = place.store.folder / "runs" / "runs" / RUN
    written = [file.read_text(errors="replace") for file in run.rglob("*") if file.is_file()]
    assert "step" in there, "the submitter's log was not read"
    for planted in (SECRET, token):
        for text in (there, launch.output, *written):
            assert planted not in text
