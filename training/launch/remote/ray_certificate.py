"""How a pod gets its certificate for Ray: an init container and its volumes. Pure."""

from __future__ import annotations

from typing import Any

from trainfleet.infra.outputs.contract import RayCertificates
from trainfleet.training.launch.remote.pod_settings import restricted, variables

Document = dict[str, Any]

CONTAINER = "certificate"
TLS_VOLUME = "ray-tls"
"""What Ray's container mounts at `RayCertificates.mount`: tls.crt, tls.key and ca.crt."""
SETUP_VOLUME, CA_VOLUME = "ray-tls-setup", "ray-ca"
TOKEN_S = 600
"""Life of the pod's token for the signer, the shortest that Kubernetes issues. The kubelet renews it."""


def certificate_mount(tls: RayCertificates) -> Document:
    """The certificate in the container that runs Ray."""
    return {"name": TLS_VOLUME, "mountPath": tls.mount, "readOnly": True}


def certificate_container(tls: RayCertificates, image: str) -> Document:
    """The init container that creates the pod's key and asks the platform's signer for its certificate."""
    setup = {"name": SETUP_VOLUME, "mountPath": tls.config_mount, "readOnly": True}
    own = {
        "command": ["python", f"{tls.config_mount}/{tls.script}"],
        "env": variables({"RAY_SIGNER": tls.signer, "RAY_TLS_FOLDER": tls.mount}),
        "volumeMounts": [setup, {"name": TLS_VOLUME, "mountPath": tls.mount}],
    }
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        **(own if tls.signer else _signs_itself(tls, setup)),
        # The namespace's quota rejects a container without requests.
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": restricted(),
        # Its last line says why the signer refused.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def certificate_volumes(tls: RayCertificates) -> list[Document]:
    """The volumes of both containers."""
    empty = {"name": TLS_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    if not tls.signer:
        key = {"name": CA_VOLUME, "secret": {"secretName": tls.ca_secret}}
        return [key, {"name": SETUP_VOLUME, "configMap": {"name": tls.config}}, empty]
    token = {"audience": tls.audience, "expirationSeconds": TOKEN_S, "path": "token"}
    sources: list[Document] = [
        {"configMap": {"name": tls.config}},
        {"configMap": {"name": tls.ca_config, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"serviceAccountToken": token},
    ]
    return [{"name": SETUP_VOLUME, "projected": {"sources": sources}}, empty]


def _signs_itself(tls: RayCertificates, setup: Document) -> Document:
    """On a platform before contract version 6, whose pods mount the key of the CA."""
    fields = {"POD_IP": "status.podIP", "POD_NAMESPACE": "metadata.namespace"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    return {
        "command": ["/bin/sh", f"{tls.config_mount}/{tls.script}"],
        "env": [*env, *variables({"RAY_CA_FOLDER": tls.ca_mount, "RAY_TLS_FOLDER": tls.mount})],
        "volumeMounts": [
            {"name": CA_VOLUME, "mountPath": tls.ca_mount, "readOnly": True},
            setup,
            {"name": TLS_VOLUME, "mountPath": tls.mount},
        ],
    }
