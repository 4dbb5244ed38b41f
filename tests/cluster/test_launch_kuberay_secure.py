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
from tests.cluster.signer import log, signer, write_ca
from trainfleet.infra.kubernetes.names import RAY_CA
from trainfleet.infra.outputs.contract import RayCertificates
from trainfleet.local_cluster.images import LOCAL
from trainfleet.local_cluster.stores.servers import SECRET
from trainfleet.training.launch.platform_outputs import external_cluster
from trainfleet.training.launch.remote.pod_settings import pod_security
from trainfleet.training.launch.remote.ray_certificate import certificate_container, certificate_volumes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]
__all__ = ["place"]
RUN = "closed"


def platform(place: Place, certificates: RayCertificates) -> Path:
    """A file with the outputs of a platform whose pods get these certificates."""
    outputs = external_cluster(place.cluster.state.context, place.namespace, LOCAL, f"{place.store.url}/runs")
    secured = outputs.model_copy(
        update={"ray_tls": True, "ray_certificates": certificates, "ray_version": "2.60.0"}
    )
    file = place.folder / "outputs.json"
    file.write_text(secured.model_dump_json())
    return file


@pytest.mark.slow
def test_ray_requires_certificates_and_a_token_and_shows_no_secret(place: Place) -> None:
    with (
        signer(place.cluster, place.namespace) as certificates,
        launched(place, RUN, *LONG, stack=platform(place, certificates)) as launch,
    ):
        launch.reach(10)
        _every_certificate_is_for_one_pod_and_no_pod_has_the_key(place)
        _the_signer_refuses_another_audience(place, certificates)
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


def _every_certificate_is_for_one_pod_and_no_pod_has_the_key(place: Place) -> None:
    pods = json.loads(place.kubectl("get", "pod", "-l", "ray.io/node-type", "-o", "json"))["items"]
    signed = log(place.cluster)
    for each in pods:
        name, uid, address = each["metadata"]["name"], each["metadata"]["uid"], each["status"]["podIP"]
        assert f"signed for pod {name} ({uid}) at {address}\n" in signed
        script = (
            "openssl x509 -in /etc/ray/tls/tls.crt -noout -ext subjectAltName; find /etc/ray -name '*.key'"
        )
        shown = place.kubectl(
            "exec", name, "-c", each["spec"]["containers"][0]["name"], "--", "sh", "-c", script
        )
        others = {other["status"]["podIP"] for other in pods} - {address}
        assert f"IP Address:{address}" in shown
        assert not [other for other in others if f"IP Address:{other}" in shown]
        assert shown.splitlines()[-1] == "/etc/ray/tls/tls.key"
        assert not [volume for volume in each["spec"]["volumes"] if "secret" in volume]
    assert len(pods) > 1
    assert place.kubectl("get", "secret", RAY_CA, "--ignore-not-found") == ""


def _the_signer_refuses_another_audience(place: Place, certificates: RayCertificates) -> None:
    """A pod that proves itself with a token for the API server."""
    stranger = certificates.model_copy(update={"audience": "https://kubernetes.default.svc"})
    init = certificate_container(stranger, LOCAL) | {"name": "main", "args": []}
    spec = {"containers": [init], "volumes": certificate_volumes(stranger), "restartPolicy": "Never"}
    spec["securityContext"] = pod_security()
    metadata = {"name": "stranger", "namespace": place.namespace}
    place.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    try:
        until(
            lambda: "401, the token is not valid" in place.kubectl("logs", "stranger", check=False),
            "an answer",
            120,
        )
    finally:
        place.kubectl("delete", "pod", "stranger", "--now")


def _head(place: Place) -> str:
    return place.kubectl(
        "get", "pod", "-l", "ray.io/node-type=head", "-o", "jsonpath={.items[0].status.podIP}"
    )


def _ray_rejects_a_client_without_certificate(place: Place) -> None:
    folder = place.folder
    authority, key = write_ca(place.cluster, folder)
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=ray"]
    sign = ["-CA", str(authority), "-CAkey", str(key), "-CAcreateserial", "-days", "2"]
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
    command = [PROGRAM, "runs", "dashboard", RUN, *place.where, "--port", "0", "--token", "--json"]
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
