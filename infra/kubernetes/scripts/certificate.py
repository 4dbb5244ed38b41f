"""Get a Ray pod's own certificate from the platform's signer. An init container with openssl runs this.

The key is created here and never leaves the pod. Next to this file are the CA's certificate (ca.crt) and a
token that the cluster issued to this pod for the signer (token). Exits with 1 if the signer refuses, or does
not answer in time; the kubelet then starts the container again.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

LIMIT_S = 300.0
"""How long to repeat the request. A platform that was just applied pulls the signer's image first."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 10.0
SOCKET_S = 30.0
FINAL = (400, 403, 404, 413)
"""Statuses that the same request would get again."""


class WaitingError(Exception):
    """What a later request may get past."""


class DeniedError(Exception):
    """What no later request gets past."""


def create_key(folder: Path) -> bytes:
    """A key in the folder, and a request for a certificate of it."""
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-sha256"]
    command = ["openssl", "req", *kind, "-keyout", str(folder / "tls.key"), "-subj", "/O=trainfleet/CN=ray"]
    return subprocess.run(command, check=True, capture_output=True).stdout


def ask(url: str, setup: Path, request: bytes) -> tuple[bytes, bytes]:
    """The pod's certificate, and the CA's.

    Raises:
        WaitingError: no answer, or one that may change.
        DeniedError: the signer refuses.
    """
    where = urlsplit(url)
    try:
        authority = (setup / "ca.crt").read_bytes()
        token = (setup / "token").read_text(encoding="utf-8").strip()
        trust = ssl.create_default_context(cadata=authority.decode())
        # Not by a proxy: the signer checks the address that the connection comes from.
        with contextlib.closing(
            http.client.HTTPSConnection(where.hostname or "", where.port, timeout=SOCKET_S, context=trust)
        ) as connection:
            connection.request("POST", where.path, request, {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            body = answer.read()
    except ssl.SSLCertVerificationError as error:
        raise WaitingError(f"its certificate is not the platform's: {error.verify_message}") from error
    except (OSError, http.client.HTTPException) as error:
        raise WaitingError(f"{type(error).__name__}: {error}") from error
    if answer.status == 200:
        return body, authority
    reason = f"{answer.status}, {body.decode(errors='replace').strip()}"
    raise DeniedError(reason) if answer.status in FINAL else WaitingError(reason)


def obtain(url: str, setup: Path, request: bytes, limit_s: float = LIMIT_S) -> tuple[bytes, bytes]:
    """Repeat the request until it is answered. Says what it waits for, once for each reason.

    Raises:
        DeniedError: the signer refuses, or did not answer in time.
    """
    end, wait, last = time.monotonic() + limit_s, FIRST_WAIT_S, ""
    while True:
        try:
            return ask(url, setup, request)
        except WaitingError as waiting:
            if str(waiting) != last:
                say(f"waiting for the signer of Ray's certificates at {url}: {waiting}")
            last = str(waiting)
        if time.monotonic() + wait > end:
            raise DeniedError(f"no certificate in {limit_s:.0f} s; the last answer was: {last}")
        time.sleep(wait)
        wait = min(LONGEST_WAIT_S, 2 * wait)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(env: Mapping[str, str]) -> int:
    """Write tls.key, tls.crt and ca.crt to the folder that Ray's container mounts."""
    os.umask(0o077)
    url, folder = env["RAY_SIGNER"], Path(env["RAY_TLS_FOLDER"])
    try:
        certificate, authority = obtain(url, Path(__file__).parent, create_key(folder))
    except DeniedError as denied:
        say(f"the signer of Ray's certificates at {url} gives this pod none: {denied}")
        return 1
    (folder / "tls.crt").write_bytes(certificate)
    (folder / "ca.crt").write_bytes(authority)
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (folder / name).chmod(0o644)  # Ray's container may run as another user than this one
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
