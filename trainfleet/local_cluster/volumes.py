"""The provisioner of the storage class `local`: one folder on the node per claim, removed with the claim.

node_init.py runs it as a server, with the standard library only. All pods are on one node: several can mount
a folder for reading and writing. The size of a claim is not enforced.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import ssl
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PROVISIONER = "trainfleet.io/volumes"
POLL_INTERVAL_S = 1.0
MADE_BY = "pv.kubernetes.io/provisioned-by"


class Api:
    """A client of the API server, with one connection that is opened again after an error."""

    def __init__(self, server: str, pki: Path) -> None:
        self.host = urlsplit(server)
        self.context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self.context.load_cert_chain(pki / "volumes.crt", pki / "volumes.key")
        self.connection: http.client.HTTPSConnection | None = None

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send one request; a status of 400 or above raises OSError."""
        if self.connection is None:
            self.connection = http.client.HTTPSConnection(
                self.host.hostname or "", self.host.port, context=self.context, timeout=20
            )
        try:
            self.connection.request(
                method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"}
            )
            answer = self.connection.getresponse()
            document: dict[str, Any] = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            self.connection.close()
            self.connection = None
            raise
        if answer.status >= 400:
            raise OSError(f"{method} {path}: {answer.status} {document.get('message')}")
        return document


def volume(claim: dict[str, Any], storage_class: str, folder: Path) -> dict[str, Any]:
    """The volume for a claim."""
    meta, spec = claim["metadata"], claim["spec"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"pvc-{meta['uid']}", "annotations": {MADE_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": storage_class,
            "volumeMode": "Filesystem",
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
        },
    }


def needs_volume(claim: dict[str, Any], storage_class: str) -> bool:
    spec = claim["spec"]
    matches = (
        spec.get("storageClassName") == storage_class and spec.get("volumeMode", "Filesystem") == "Filesystem"
    )
    return matches and not spec.get("volumeName") and "deletionTimestamp" not in claim["metadata"]


def reconcile(api: Api, storage_class: str, root: Path) -> None:
    """Create the volumes that claims need, and remove those whose claim was deleted."""
    volumes = {
        item["metadata"]["name"]: item
        for item in api.call("GET", "/api/v1/persistentvolumes?resourceVersion=0").get("items") or ()
    }
    for claim in api.call("GET", "/api/v1/persistentvolumeclaims?resourceVersion=0").get("items") or ():
        if needs_volume(claim, storage_class) and f"pvc-{claim['metadata']['uid']}" not in volumes:
            folder = root / f"pvc-{claim['metadata']['uid']}"
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)  # pods run as any user
            api.call("POST", "/api/v1/persistentvolumes", volume(claim, storage_class, folder))
            log(f"created {folder.name} for {claim['metadata']['namespace']}/{claim['metadata']['name']}")
    for name, item in volumes.items():
        ours = (item["metadata"].get("annotations") or {}).get(MADE_BY) == PROVISIONER
        if (
            ours
            and item.get("status", {}).get("phase") == "Released"
            and item["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
        ):
            shutil.rmtree(root / name, ignore_errors=True)
            with contextlib.suppress(OSError):  # already deleted: the list may be old
                api.call("DELETE", f"/api/v1/persistentvolumes/{name}")
            log(f"removed {name}")


def log(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def main() -> None:
    server, pki, storage_class, root = sys.argv[1:]
    api = Api(server, Path(pki))
    while True:
        try:
            reconcile(api, storage_class, Path(root))
        except (OSError, http.client.HTTPException, ValueError) as error:
            log(f"the API server: {error}")
        time.sleep(POLL_INTERVAL_S)


if __name__ == "__main__":
    main()
