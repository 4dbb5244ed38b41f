"""The CA, and what it signs, by openssl."""

from __future__ import annotations

import secrets
import ssl
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .api import RefusedError

CA_DAYS = 3650
SERVER_DAYS = 90
OPENSSL_S = 10.0
"""Time limit of openssl."""


def openssl(*arguments: str, given: bytes = b"") -> bytes:
    """The output of openssl.

    Raises:
        RefusedError: 400, it rejected what it was given, or took too long.
    """
    try:
        done = subprocess.run(
            ["openssl", *arguments], input=given, capture_output=True, check=False, timeout=OPENSSL_S
        )
    except subprocess.TimeoutExpired as error:
        raise RefusedError(503, f"openssl {arguments[0]} took longer than {OPENSSL_S:.0f} s") from error
    if done.returncode != 0:
        first = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[0]
        raise RefusedError(400, f"openssl {arguments[0]} rejects the request: {first}")
    return done.stdout


def make(folder: Path) -> tuple[bytes, bytes]:
    """A certificate that may sign others, and its key."""
    key, certificate = folder / "tls.key", folder / "tls.crt"
    kind = (
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-sha256",
        "-nodes",
        "-days",
        str(CA_DAYS),
    )
    limits = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
    extensions = [text for limit in limits for text in ("-addext", limit)]
    files = ("-keyout", str(key), "-out", str(certificate), "-subj", "/O=trainfleet/CN=ray-ca")
    openssl("req", "-x509", *kind, *extensions, *files)
    return certificate.read_bytes(), key.read_bytes()


@dataclass
class Authority:
    """The CA, as files of a folder in memory, and the server's own certificate."""

    folder: Path
    certificate: bytes
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        for name, content in (("ca.crt", self.certificate), ("ca.key", self.key)):
            (self.folder / name).touch(mode=0o600)
            (self.folder / name).write_bytes(content)
        openssl("x509", "-in", str(self.folder / "ca.crt"), "-noout")

    def sign(self, request: bytes, names: Iterable[str], days: int) -> bytes:
        """A certificate for the public key of a request. Everything else that it asks for is ignored.

        Raises:
            RefusedError: it is not a request, or not signed with its own key.
        """
        lines = (
            "basicConstraints = critical, CA:FALSE",
            "keyUsage = critical, digitalSignature, keyEncipherment",
            "extendedKeyUsage = serverAuth, clientAuth",
            "subjectKeyIdentifier = hash",
            "authorityKeyIdentifier = keyid",
            f"subjectAltName = {', '.join(names)}",
        )
        authority = ("-CA", str(self.folder / "ca.crt"), "-CAkey", str(self.folder / "ca.key"))
        # The first bit of a serial number is its sign (RFC 5280, 4.1.2.2).
        serial = ("-set_serial", hex(secrets.randbits(127)))
        with tempfile.NamedTemporaryFile("w", dir=self.folder, suffix=".cnf") as extensions:
            extensions.write("\n".join(lines))
            extensions.flush()
            own = (
                "-subj",
                "/O=trainfleet/CN=ray",
                "-days",
                str(days),
                "-sha256",
                "-extfile",
                extensions.name,
            )
            return openssl("x509", "-req", *authority, *serial, *own, given=request)

    def server_context(self, service: str) -> ssl.SSLContext:
        """TLS of the signer's own server, by a new key."""
        key, certificate = self.folder / "server.key", self.folder / "server.crt"
        new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=ray-signer")
        request = openssl("req", *new, "-keyout", str(key))
        certificate.write_bytes(self.sign(request, [f"DNS:{service}"], SERVER_DAYS))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context


def pod_names(addresses: Iterable[str], namespace: str, domain: str) -> list[str]:
    """The names of a pod's certificate. A head is reached by its service's name, which its pod does not know,
    so those of the namespace are covered by a wildcard.
    """
    zones = ("", ".svc", f".svc.{domain}")
    services = [f"DNS:*.{namespace}{zone}" for zone in zones]
    return ["DNS:localhost", *services, "IP:127.0.0.1", *(f"IP:{each}" for each in addresses)]
