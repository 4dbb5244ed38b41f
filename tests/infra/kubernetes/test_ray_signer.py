"""Who gets a certificate from the signer: real openssl and TLS on loopback, a stand-in for the API server."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.infra.kubernetes.signer_place import (
    PODS,
    PUBLIC,
    SECRET,
    Place,
    place,
    post,
    review,
    run_init,
    serving,
    setup_folder,
    shown,
)
from trainfleet.infra.kubernetes.scripts import certificate
from trainfleet.infra.kubernetes.scripts.ray_signer import server as server_module
from trainfleet.infra.kubernetes.scripts.ray_signer.signer import POD_NAME, POD_UID

__all__ = ["place"]


def test_a_pod_gets_a_certificate_for_its_addresses_and_its_key_stays(place: Place) -> None:
    with serving(place) as (port, lines):
        setup = setup_folder(place, place.add_pod("head", "127.0.0.1", "::1"))
        done = run_init(setup, port, place.folder / "tls")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    tls = place.folder / "tls"
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in tls.iterdir()} == dict.fromkeys(
        ("tls.crt", "tls.key", "ca.crt"), "0o644"
    )
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(tls / "tls.crt", tls / "tls.key")
    verify = ["openssl", "verify", "-x509_strict", "-CAfile", str(tls / "ca.crt"), str(tls / "tls.crt")]
    subprocess.run(verify, check=True, capture_output=True)
    names = shown((tls / "tls.crt").read_text(), "-ext", "subjectAltName")
    assert [each.strip() for each in names.splitlines()[1].split(",")] == [
        "DNS:localhost",
        "DNS:*.training",
        "DNS:*.training.svc",
        "DNS:*.training.svc.cluster.local",
        "IP Address:127.0.0.1",
        "IP Address:127.0.0.1",
        "IP Address:0:0:0:0:0:0:0:1",
    ]
    key = base64.b64decode(place.api.objects[SECRET]["data"]["tls.key"])
    assert b"PRIVATE KEY" in key
    assert "PRIVATE" not in str(place.api.objects[PUBLIC]) + "".join(lines)
    assert not [path for path in place.api.objects if "training/secrets" in path]


def test_what_a_request_asks_for_is_ignored(place: Place) -> None:
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", os.devnull]
    more = ["-addext", "subjectAltName=IP:10.0.0.9", "-addext", "basicConstraints=critical,CA:TRUE"]
    asked = subprocess.run(
        ["openssl", "req", *key, *more, "-subj", "/CN=kubernetes"], check=True, capture_output=True
    ).stdout
    with serving(place) as (port, _):
        status, text = post(place, port, place.add_pod("worker", "127.0.0.7"), asked, "127.0.0.7")
    assert status == 200
    details = shown(text, "-text")
    assert "CA:FALSE" in details
    assert "CA:TRUE" not in details
    assert "IP Address:127.0.0.7" in details
    assert "10.0.0.9" not in details
    assert "kubernetes" not in details


CASES: dict[str, tuple[dict[str, Any], str, int, str]] = {
    "the address of another pod": ({}, "127.0.0.8", 409, "pod worker has address 127.0.0.7, and the request"),
    "a token for another audience": (
        {"review": review("worker", audience="vault")},
        "127.0.0.7",
        401,
        "audiences ['vault'] is invalid",
    ),
    "an expired token": (
        {"review": {"authenticated": False, "error": "service account token has expired"}},
        "127.0.0.7",
        401,
        "service account token has expired",
    ),
    "an account of another namespace": (
        {"review": review("worker", user="system:serviceaccount:kuberay-system:operator")},
        "127.0.0.7",
        403,
        "is not an account of namespace training",
    ),
    "a namespace whose name begins alike": (
        {"review": review("worker", user="system:serviceaccount:training-2:trainer")},
        "127.0.0.7",
        403,
        "is not an account of namespace training",
    ),
    "a person": (
        {"review": review("worker", user="ana@example.com")},
        "127.0.0.7",
        403,
        "is not an account",
    ),
    "a token without a pod": (
        {"review": review("worker", **{POD_NAME: [], POD_UID: []})},
        "127.0.0.7",
        403,
        "is not bound to a pod",
    ),
    "a pod that is gone": ({"gone": True}, "127.0.0.7", 403, "with uid worker-uid does not exist"),
    "a pod of the same name": (
        {"metadata": {"uid": "later"}},
        "127.0.0.7",
        403,
        "with uid worker-uid does not exist",
    ),
    "a pod that is being deleted": (
        {"metadata": {"deletionTimestamp": "2026-11-25T10:00:00Z"}},
        "127.0.0.7",
        403,
        "has ended, or is being deleted",
    ),
    "a pod that failed": ({"status": {"phase": "Failed"}}, "127.0.0.7", 403, "has ended"),
    "a pod without an address": ({"status": {"podIPs": []}}, "127.0.0.7", 503, "does not know the address"),
    "a pod on its node's network": ({"spec": {"hostNetwork": True}}, "127.0.0.7", 403, "hostNetwork"),
    "no request for a certificate": (
        {"body": b"hello"},
        "127.0.0.7",
        400,
        "openssl x509 rejects the request",
    ),
    "an empty request": ({"body": b""}, "127.0.0.7", 413, "has 0 bytes"),
    "a request that is too long": ({"body": b"x" * 8193}, "127.0.0.7", 413, "8193 bytes, and may have 1 to"),
    "a long request": ({"body": b"x" * 60_000}, "127.0.0.7", 413, "60000 bytes"),
    "no token": ({"token": ""}, "127.0.0.7", 401, "the request has no token"),
    "another path": ({"path": "/"}, "127.0.0.7", 404, "there is no such path"),
}


def test_everything_else_is_refused_with_its_reason(place: Place, tmp_path: Path) -> None:
    request = certificate.create_key(tmp_path)
    with serving(place) as (port, _):
        for name, (changes, source, status, says) in CASES.items():
            parts = {key: changes[key] for key in ("metadata", "spec", "status") if key in changes}
            token = changes.get("token", place.add_pod("worker", "127.0.0.7", **parts))
            if "review" in changes:
                place.api.reviews[token] = changes["review"]
            if "gone" in changes:
                del place.api.objects[f"{PODS}/worker"]
            answer = post(
                place, port, token, changes.get("body", request), source, changes.get("path", "/sign")
            )
            assert answer[0] == status, (name, answer)
            assert says in answer[1], (name, answer)
        assert post(place, port, place.add_pod("worker", "127.0.0.7"), request, "127.0.0.7")[0] == 200


def test_a_request_whose_signature_was_changed_is_refused(place: Place, tmp_path: Path) -> None:
    """A key that the pod does not have would be certified for its address."""
    lines = certificate.create_key(tmp_path).decode().splitlines()
    der = bytearray(base64.b64decode("".join(lines[1:-1])))
    der[-1] ^= 1
    changed = "\n".join([lines[0], base64.b64encode(bytes(der)).decode(), lines[-1], ""]).encode()
    with serving(place) as (port, _):
        status, text = post(place, port, place.add_pod("worker", "127.0.0.7"), changed, "127.0.0.7")
    assert status == 400, text


def test_an_address_may_open_few_connections_at_once(place: Place, tmp_path: Path) -> None:
    request = certificate.create_key(tmp_path)
    with serving(place) as (port, _), ExitStack() as stack:
        token = place.add_pod("worker", "127.0.0.7")
        for _ in range(server_module.MAX_PER_ADDRESS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 20, ("127.0.0.9", 0)))
        with pytest.raises((ConnectionError, ssl.SSLError)):
            post(place, port, token, request, "127.0.0.9")
        assert post(place, port, token, request, "127.0.0.7")[0] == 200
