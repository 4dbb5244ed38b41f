"""Who gets a certificate, and the CA's Secret."""

from __future__ import annotations

import base64
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from .api import Api, RefusedError, log
from .authority import OPENSSL_S, Authority, make, openssl, pod_names

if TYPE_CHECKING:
    import ssl

POD_DAYS = 365
"""Ray reads its certificate once, when it starts."""
RENEW_S = 30 * 24 * 3600.0
"""When the signer gets a new certificate of its own."""
MAX_OPENSSL = 4
"""How many certificates are signed at once."""
POD_NAME, POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
"""What a token that is bound to a pod says of it (kubernetes.io, "Managing Service Accounts")."""
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Settings:
    """What the Deployment sets."""

    namespace: str
    """Of the signer and of the CA's Secret."""
    training: str
    """The namespace whose pods get certificates, and the public certificate of the CA in a ConfigMap."""
    authority: str
    """The name of that Secret and of that ConfigMap."""
    service: str
    audience: str
    port: int
    create: bool
    """Whether the signer creates the CA. Otherwise cert-manager does."""
    domain: str = "cluster.local"

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Settings:
        return cls(
            namespace=env["NAMESPACE"],
            training=env["TRAINING_NAMESPACE"],
            authority=env["CA_NAME"],
            service=env["SERVICE"],
            audience=env["AUDIENCE"],
            port=int(env["PORT"]),
            create=env["CREATE_CA"] == "yes",
            domain=env.get("CLUSTER_DOMAIN", "cluster.local"),
        )


class Signer:
    """Decides who gets a certificate, and keeps the CA up to date."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self._api, self._settings = api, settings
        self._authority: Authority | None = None
        self._folders: list[tempfile.TemporaryDirectory[str]] = []
        self._renewed = 0.0
        self._former_user = ""
        self._slots = BoundedSemaphore(MAX_OPENSSL)
        self.context: ssl.SSLContext | None = None

    @property
    def certificate(self) -> bytes:
        """The CA's certificate; empty before the first refresh."""
        return self._authority.certificate if self._authority else b""

    def refresh(self) -> None:
        """Read the CA, or create it, publish its certificate, and delete the Secret of earlier releases.

        Raises:
            RefusedError: the API server does not answer, or the CA does not exist yet.
        """
        certificate, key = self._stored()
        current = self._authority
        if current is None or (current.certificate, current.key) != (certificate, key):
            self._load(certificate, key)
        elif time.monotonic() - self._renewed > RENEW_S:
            self._renew(current)
        self._publish(certificate)
        self._delete_former()

    def close(self) -> None:
        """Remove the copies of the key."""
        for folder in self._folders:
            folder.cleanup()

    def _stored(self) -> tuple[bytes, bytes]:
        """Certificate and key of the Secret. NOTE: an existing one is kept, or running pods would no longer
        trust new ones.
        """
        own = self._settings
        path = f"/api/v1/namespaces/{own.namespace}/secrets"
        found = self._api.expect((200, 404), "GET", f"{path}/{own.authority}")
        if "data" not in found and own.create:
            with tempfile.TemporaryDirectory() as folder:
                certificate, key = make(Path(folder))
            self._create_secret(path, {"tls.crt": certificate, "tls.key": key})
            # Another replica may have been first.
            found = self._api.expect((200,), "GET", f"{path}/{own.authority}")
        try:
            data = found["data"]
            return base64.b64decode(data["tls.crt"]), base64.b64decode(data["tls.key"])
        except KeyError as error:
            raise RefusedError(503, f"cert-manager has not written secret {own.authority} yet") from error

    def _create_secret(self, path: str, content: Mapping[str, bytes]) -> None:
        own = self._settings
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": own.authority, "namespace": own.namespace},
            "data": {name: base64.b64encode(value).decode() for name, value in content.items()},
        }
        created = self._api.expect((201, 409), "POST", path, secret).get("kind") == "Secret"
        result = "created" if created else "kept the existing one"
        log(f"secret {own.namespace}/{own.authority}: {result}")

    def _load(self, certificate: bytes, key: bytes) -> None:
        # The folder of an earlier one stays: a request may be using it.
        folder = tempfile.TemporaryDirectory()
        self._folders.append(folder)
        authority = Authority(Path(folder.name), certificate, key)
        self._renew(authority)
        self._authority = authority
        end = openssl("x509", "-noout", "-enddate", given=certificate).decode().strip().partition("=")[2]
        log(f"signing with secret {self._settings.namespace}/{self._settings.authority}, valid until {end}")

    def _renew(self, authority: Authority) -> None:
        self.context = authority.server_context(self._settings.service)
        self._renewed = time.monotonic()

    def _publish(self, certificate: bytes) -> None:
        """The certificate in a ConfigMap of the pods' namespace, and back if somebody changed it."""
        own = self._settings
        path = f"/api/v1/namespaces/{own.training}/configmaps"
        data = {"ca.crt": certificate.decode()}
        found = self._api.expect((200, 404), "GET", f"{path}/{own.authority}")
        if found.get("data") == data:
            return
        metadata = {"name": own.authority, "namespace": own.training}
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        if found.get("kind") == "ConfigMap":
            self._api.expect((200, 404, 409), "PUT", f"{path}/{own.authority}", config)
        else:
            self._api.expect((201, 409), "POST", path, config)
        log(f"configmap {own.training}/{own.authority}: published the certificate")

    def _delete_former(self) -> None:
        """The key that pods of earlier releases mounted, once no object refers to it."""
        own = self._settings
        path = f"/api/v1/namespaces/{own.training}/secrets/{own.authority}"
        if own.training == own.namespace or self._api.request("GET", path)[0] != 200:
            return
        if user := next(self._users_of_former(), ""):
            if user != self._former_user:
                log(f"secret {own.training}/{own.authority} of an earlier release is kept: {user} mounts it")
            self._former_user = user
            return
        self._api.expect((200, 202, 404), "DELETE", path)
        log(f"secret {own.training}/{own.authority} of an earlier release: deleted")

    def _users_of_former(self) -> Iterator[str]:
        """Pods and objects of Ray that mount it, and have not ended."""
        space, mounts = f"namespaces/{self._settings.training}", f'"secretName":"{self._settings.authority}"'
        ray = [f"/apis/ray.io/v1/{space}/{kind}" for kind in ("rayclusters", "rayjobs", "rayservices")]
        for path in (f"/api/v1/{space}/pods", *ray):
            for item in self._api.expect((200, 404), "GET", path).get("items") or ():
                status = item.get("status") or {}
                ended = status.get("phase") in ENDED or status.get("jobDeploymentStatus") in (
                    "Complete",
                    "Failed",
                )
                if not ended and mounts in json.dumps(item.get("spec"), separators=(",", ":")):
                    yield f"{path.rpartition('/')[2]}/{item['metadata']['name']}"

    def answer(self, token: str, request: bytes, address: str) -> tuple[str, bytes]:
        """What a certificate was signed for, and the certificate.

        Raises:
            RefusedError: with the reason.
        """
        if self._authority is None:
            raise RefusedError(503, "the signer has no CA yet")
        name, uid = self._pod_of(token)
        addresses = self._addresses(name, uid)
        if address not in addresses:
            # NOTE: launchers may write a pod's status. The connection proves the address.
            raise RefusedError(
                409, f"pod {name} has address {', '.join(addresses)}, and the request came from {address}"
            )
        names = pod_names(addresses, self._settings.training, self._settings.domain)
        if not self._slots.acquire(timeout=OPENSSL_S):
            raise RefusedError(503, "the signer is busy")
        try:
            signed = self._authority.sign(request, names, POD_DAYS)
        finally:
            self._slots.release()
        return f"pod {name} ({uid}) at {', '.join(addresses)}", signed

    def _pod_of(self, token: str) -> tuple[str, str]:
        """Name and uid of the pod that a token was issued to."""
        own = self._settings
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [own.audience]},
        }
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        status = self._api.expect((200, 201), "POST", path, review).get("status") or {}
        if not status.get("authenticated"):
            raise RefusedError(401, f"the token is not valid: {status.get('error') or 'no reason given'}")
        if own.audience not in (status.get("audiences") or ()):
            raise RefusedError(403, f"the token is not for the audience {own.audience}")
        user = status.get("user") or {}
        username, extra = user.get("username", ""), user.get("extra") or {}
        if not str(username).startswith(f"system:serviceaccount:{own.training}:"):
            raise RefusedError(403, f"{username} is not an account of namespace {own.training}")
        names, uids = extra.get(POD_NAME) or [], extra.get(POD_UID) or []
        if len(names) != 1 or len(uids) != 1:
            raise RefusedError(403, f"the token of {username} is not bound to a pod")
        return names[0], uids[0]

    def _addresses(self, name: str, uid: str) -> list[str]:
        """The addresses of a pod."""
        space = self._settings.training
        pod = self._api.expect((200, 404), "GET", f"/api/v1/namespaces/{space}/pods/{name}")
        status = pod.get("status") or {}
        if (pod.get("metadata") or {}).get("uid") != uid:
            raise RefusedError(403, f"pod {name} with uid {uid} does not exist in namespace {space}")
        if pod["metadata"].get("deletionTimestamp") or status.get("phase") in ENDED:
            raise RefusedError(403, f"pod {name} has ended, or is being deleted")
        if (pod.get("spec") or {}).get("hostNetwork"):
            what = "its certificate would be valid for every pod of the node that does too"
            raise RefusedError(403, f"pod {name} uses the network of its node (hostNetwork): {what}")
        listed = [each.get("ip") for each in status.get("podIPs") or ()] or [status.get("podIP")]
        addresses = [str(ip_address(each)) for each in listed if each]
        if not addresses:
            raise RefusedError(503, f"the API server does not know the address of pod {name} yet")
        return addresses
