"""The provisioner of the storage class `local`: a folder on the node per claim, gone with the claim. Standard
library only.

Run by init.py beside the other servers. One node, so a folder can be mounted by many pods for reading and
writing. Easy to get
wrong: pods run as any user, so the folder is open to all of them; what a claim may hold is not limited, the
size is only a word.
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
LOOK_EVERY = 1.0
MADE_BY = "pv.kubernetes.io/provisioned-by"


class Api:
    """The API server, by one connection that is made again when it breaks."""

    def __init__(self, server: str, pki: Path) -> None:
        self.host = urlsplit(server)
        self.context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self.context.load_cert_chain(pki / "volumes.crt", pki / "volumes.key")
        self.connection: http.client.HTTPSConnection | None = None

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request; an answer of 400 and above is an OSError."""
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


def wants_one(claim: dict[str, Any], storage_class: str) -> bool:
    spec = claim["spec"]
    mine = (
        spec.get("storageClassName") == storage_class and spec.get("volumeMode", "Filesystem") == "Filesystem"
    )
    return mine and not spec.get("volumeName") and "deletionTimestamp" not in claim["metadata"]


def look(api: Api, storage_class: str, root: Path) -> None:
    """Make the volumes that are asked for, and remove those whose claim is gone."""
    have = {
        item["metadata"]["name"]: item
        for item in api.call("GET", "/api/v1/persistentvolumes?resourceVersion=0").get("items") or ()
    }
    for claim in api.call("GET", "/api/v1/persistentvolumeclaims?resourceVersion=0").get("items") or ():
        if wants_one(claim, storage_class) and f"pvc-{claim['metadata']['uid']}" not in have:
            folder = root / f"pvc-{claim['metadata']['uid']}"
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
            api.call("POST", "/api/v1/persistentvolumes", volume(claim, storage_class, folder))
            say(f"made {folder.name} for {claim['metadata']['namespace']}/{claim['metadata']['name']}")
    for name, item in have.items():
        ours = (item["metadata"].get("annotations") or {}).get(MADE_BY) == PROVISIONER
        if (
            ours
            and item.get("status", {}).get("phase") == "Released"
            and item["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
        ):
            shutil.rmtree(root / name, ignore_errors=True)
            with contextlib.suppress(OSError):  # seen twice: the list is a moment old
                api.call("DELETE", f"/api/v1/persistentvolumes/{name}")
            say(f"removed {name}")


def say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def main() -> None:
    server, pki, storage_class, root = sys.argv[1:]
    api = Api(server, Path(pki))
    while True:
        try:
            look(api, storage_class, Path(root))
        except (OSError, http.client.HTTPException, ValueError) as error:
            say(f"the API server: {error}")
        time.sleep(LOOK_EVERY)


if __name__ == "__main__":
    main()
