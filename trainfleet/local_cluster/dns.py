"""The cluster's DNS: CoreDNS in a static pod of the first node, so that network policies select it as on any
other cluster.
"""

from __future__ import annotations

import hashlib
from typing import Any

import yaml

from trainfleet.files import write_whole
from trainfleet.local_cluster import builds, pins
from trainfleet.local_cluster.state import State

NAME = "coredns"
HOST_NAME = "host.trainfleet.internal"
"""The name by which pods reach this machine."""
DNS_LABELS = {"k8s-app": "kube-dns"}
READY_PORT = 8181


def write_manifest(state: State, image: str) -> None:
    """Write the configuration and the pod's manifest, from which the kubelet starts it. The executable is on
    this machine, so the image only has to contain a shell.
    """
    configuration = _corefile(state)
    write_whole(state.file("config", "Corefile"), configuration)
    files = {
        "coredns": builds.executable(pins.COREDNS),
        "Corefile": state.file("config", "Corefile"),
        "kubeconfig": state.file("config", f"{NAME}.kubeconfig"),
    }
    digest = hashlib.sha256(configuration.encode() + files["kubeconfig"].read_bytes()).hexdigest()
    script = f"exec /files/coredns -conf /files/Corefile >> /logs/{NAME}.log 2>&1"
    container = {
        "name": NAME,
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["/busybox", "sh", "-c", script],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": READY_PORT}, "periodSeconds": 1},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE", "DAC_OVERRIDE"]},
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
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": NAME,
            "namespace": "kube-system",
            "labels": DNS_LABELS,
            "annotations": {"trainfleet.io/configuration": digest},
        },
        "spec": {
            "containers": [container],
            "volumes": volumes,
            "priorityClassName": "system-node-critical",
            "dnsPolicy": "Default",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
        },
    }
    write_whole(state.file("config", "manifests", f"{NAME}.yaml"), yaml.safe_dump(pod))


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
