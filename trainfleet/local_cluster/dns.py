"""The cluster's DNS: CoreDNS in a pod of the first node, so that network policies select it as on any
other cluster.
"""

from __future__ import annotations

import hashlib
from typing import Any

from trainfleet.files import write_whole
from trainfleet.local_cluster import builds, pins
from trainfleet.local_cluster.kubectl import kubectl
from trainfleet.local_cluster.state import State

NAME = "coredns"
HOST_NAME = "host.trainfleet.internal"
"""The name by which pods reach this machine."""
DNS_LABELS = {"k8s-app": "kube-dns"}
READY_PORT = 8181


def objects(state: State, image: str) -> list[dict[str, Any]]:
    """The Deployment and the Service. The executable and its configuration are files of this machine, so the
    image only has to contain a shell.
    """
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    metadata = {"name": "kube-dns", "namespace": "kube-system", "labels": DNS_LABELS}
    service = {"clusterIP": str(state.dns), "ports": ports, "selector": DNS_LABELS}
    deployment = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": DNS_LABELS},
        "template": _pod(state, image),
    }
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata | {"name": NAME},
            "spec": deployment,
        },
    ]


def remove_outdated(state: State) -> None:
    """Remove the endpoint of a DNS that was a process of the first node, as in earlier versions. Half of the
    queries would still go there.
    """
    outdated = ("endpointslice", "kube-dns-node", "--ignore-not-found")
    kubectl(state, "--namespace=kube-system", "delete", *outdated)


def write_configuration(state: State) -> None:
    write_whole(state.file("config", "Corefile"), _corefile(state))


def _pod(state: State, image: str) -> dict[str, Any]:
    files = {
        "coredns": builds.executable(pins.COREDNS),
        "Corefile": state.file("config", "Corefile"),
        "kubeconfig": state.file("config", f"{NAME}.kubeconfig"),
    }
    texts = (files[name].read_bytes() for name in ("Corefile", "kubeconfig"))
    script = f"exec /files/coredns -conf /files/Corefile >> /logs/{NAME}.log 2>&1"
    container = {
        "name": NAME,
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["/busybox", "sh", "-c", script],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": READY_PORT}, "periodSeconds": 1},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            *({"name": name.lower(), "mountPath": f"/files/{name}", "readOnly": True} for name in files),
            {"name": "logs", "mountPath": "/logs"},
        ],
    }
    volumes: list[dict[str, Any]] = [
        {"name": name.lower(), "hostPath": {"path": str(path), "type": "File"}}
        for name, path in files.items()
    ]
    volumes.append({"name": "logs", "hostPath": {"path": str(state.file("logs")), "type": "Directory"}})
    # A changed configuration replaces the pod.
    annotations = {"trainfleet.io/configuration": hashlib.sha256(b"".join(texts)).hexdigest()}
    return {
        "metadata": {"labels": DNS_LABELS, "annotations": annotations},
        "spec": {
            "containers": [container],
            "volumes": volumes,
            "nodeSelector": {"kubernetes.io/hostname": state.control_plane.name},
            "priorityClassName": "system-node-critical",
            "dnsPolicy": "Default",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
        },
    }


def _corefile(state: State) -> str:
    # Other names fail at once (`hosts` without fallthrough answers SERVFAIL): no other DNS server exists, and
    # clients would wait for a time-out. Two blocks, because CoreDNS orders the plug-ins of a block itself.
    return f"""cluster.local:53 in-addr.arpa:53 {{
  errors
  ready :{READY_PORT}
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig /files/kubeconfig {state.context}
    pods insecure
    ttl 5
  }}
  cache 5
}}
.:53 {{
  errors
  hosts {{
    {state.host_address} {HOST_NAME}
  }}
}}
"""
