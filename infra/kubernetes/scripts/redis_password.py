"""Create the password of the platform's Redis inside the cluster. A Job in the training namespace runs this
once.

The password is written to one Secret and never leaves the cluster.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

BYTES = 32
CREATED, CONFLICT = 201, 409


def main() -> int:
    """Create the Secret. NOTE: an existing one is kept, or running Ray clusters would lose their Redis."""
    name, namespace = os.environ["SECRET"], os.environ["NAMESPACE"]
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    account = Path(os.environ.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
    document = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "data": {os.environ["KEY"]: base64.b64encode(secrets.token_hex(BYTES).encode()).decode()},
    }
    where = f"[{host}]" if ":" in host else host
    request = urllib.request.Request(
        f"https://{where}:{port}/api/v1/namespaces/{namespace}/secrets",
        json.dumps(document).encode(),
        {"Authorization": f"Bearer {(account / 'token').read_text()}", "Content-Type": "application/json"},
        method="POST",
    )
    context = ssl.create_default_context(cafile=str(account / "ca.crt"))
    try:
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            status = int(answer.status)
    except urllib.error.HTTPError as error:
        status = error.code
    result = {CREATED: "created", CONFLICT: "kept the existing one"}.get(
        status, f"refused with status {status}"
    )
    sys.stdout.write(f"secret {namespace}/{name}: {result}\n")
    return 0 if status in (CREATED, CONFLICT) else 1


if __name__ == "__main__":
    sys.exit(main())
