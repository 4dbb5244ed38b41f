"""Conditional requests trust the CA that SSL_CERT_FILE names, as pyarrow's clients do."""

from __future__ import annotations

import http.server
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography import x509

from tests.certificates import self_signed
from trainfleet.training.stores.conditional_clouds import CLIENTS
from trainfleet.training.stores.retry import RetryPolicy
from trainfleet.training.stores.urls import parse

ACCOUNT_KEY = "a2V5"


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that is its own CA, and its key."""
    return self_signed(folder, [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])


class Answer(http.server.BaseHTTPRequestHandler):
    """Every file exists."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("X-Goog-Generation", "7")
        self.send_header("ETag", "7")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a store on loopback, and the file of its CA."""
    crt, key = certificate(tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", crt
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_a_store_with_a_ca_of_its_own(
    kind: str, store: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, ca = store
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"https://{address}")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "account")
    monkeypatch.setenv("AZURE_STORAGE_KEY", ACCOUNT_KEY)
    monkeypatch.setenv("TRAINFLEET_AZURE_ENDPOINT", f"https://{address}/account")
    files = CLIENTS[kind](parse(f"{kind}://runs/one"), RetryPolicy())
    with pytest.raises(requests.exceptions.SSLError):
        files.get("LEASE")
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    assert files.get("LEASE") == (b"ok", "7")
