"""Create the authority of Ray's certificates inside the cluster. A Job in the training namespace runs this
once.

The key is written to one Secret and never leaves the cluster.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

DAYS = 3650
CREATED, CONFLICT = 201, 409


def make(folder: Path) -> tuple[bytes, bytes]:
    """A key and a self-signed certificate that may sign others."""
    key, certificate = folder / "tls.key", folder / "tls.crt"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-sha256", "-nodes", "-days", str(DAYS)]
    constraints = [
        "-addext",
        "basicConstraints=critical,CA:TRUE",
        "-addext",
        "keyUsage=critical,keyCertSign,cRLSign",
    ]
    files = ["-keyout", str(key), "-out", str(certificate), "-subj", "/O=trainfleet/CN=ray-ca"]
    subprocess.run(["openssl", "req", "-x509", *kind, *constraints, *files], check=True, capture_output=True)
    return certificate.read_bytes(), key.read_bytes()


def store(url: str, account: Path, document: Mapping[str, object]) -> int:
    """Create the Secret with the pod's own account. Returns the HTTP status."""
    headers = {
        "Authorization": f"Bearer {(account / 'token').read_text()}",
        "Content-Type": "application/json",
    }
    request = urllib.request.Request(url, json.dumps(document).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(
            request, context=ssl.create_default_context(cafile=str(account / "ca.crt")), timeout=30
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def main() -> int:
    """Create the authority. NOTE: an existing one is kept, or running pods would no longer trust new ones."""
    name, namespace = os.environ["SECRET"], os.environ["NAMESPACE"]
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    account = Path(os.environ.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = make(Path(folder))
    document = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": name, "namespace": namespace},
        "data": {
            "tls.crt": base64.b64encode(certificate).decode(),
            "tls.key": base64.b64encode(key).decode(),
        },
    }
    where = f"[{host}]" if ":" in host else host
    status = store(f"https://{where}:{port}/api/v1/namespaces/{namespace}/secrets", account, document)
    result = {CREATED: "created", CONFLICT: "kept the existing one"}.get(
        status, f"refused with status {status}"
    )
    sys.stdout.write(f"secret {namespace}/{name}: {result}\n")
    return 0 if status in (CREATED, CONFLICT) else 1


if __name__ == "__main__":
    sys.exit(main())
