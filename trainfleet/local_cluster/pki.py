"""The cluster's certificates and kubeconfigs, created by openssl: one authority, one certificate per server
and client. Each folder, the cluster's and that of each further node, is complete or absent.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import yaml

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.local_cluster.state import Node, State

DAYS = 365
LOOPBACK = "https://127.0.0.1:6443"
AGENTS = ("kube-proxy", "network-policies")
"""Clients of the API server on every node, besides its kubelet."""


def client_subjects(state: State) -> dict[str, str]:
    """The subject of each client certificate, by the name of certificate and kubeconfig. A user's groups are
    the organisations (O).
    """
    return {
        "admin": "/O=system:masters/CN=trainfleet-admin",
        "kubelet-client": "/O=system:masters/CN=kube-apiserver",
        "kubelet": _kubelet_subject(state.control_plane),
        "kube-controller-manager": "/CN=system:kube-controller-manager",
        "kube-scheduler": "/CN=system:kube-scheduler",
        "kube-proxy": "/CN=system:kube-proxy",
        "coredns": "/CN=trainfleet:coredns",
        "ray-operator": "/CN=trainfleet:ray-operator",
        "volumes": "/CN=trainfleet:volumes",
        "network-policies": "/CN=trainfleet:network-policies",
        "kwok": "/CN=trainfleet:kwok",
    }


def create(state: State) -> None:
    """Create the certificates and kubeconfigs, unless they exist."""
    _create_folder(state.file("pki"), partial(_certificates, state))
    _add_missing(state.control_plane, client_subjects(state))
    api = f"https://{state.node_address}:6443"
    for name in client_subjects(state):
        if name != "kubelet-client":
            target = state.kubeconfig if name == "admin" else state.file("config", f"{name}.kubeconfig")
            outside = name in {"admin", "coredns"}  # not a process in the network of the first node
            _write_kubeconfig(state.control_plane, target, name, api if outside else LOOPBACK)
    for node in state.nodes[1:]:
        _create_folder(node.file("pki"), partial(_node_certificates, node))
        _add_missing(node, {name: client_subjects(state)[name] for name in AGENTS})
        for name in ("kubelet", *AGENTS):
            _write_kubeconfig(node, node.file("config", f"{name}.kubeconfig"), name, api)


def _add_missing(node: Node, subjects: Mapping[str, str]) -> None:
    """Issue the certificates of clients that the cluster did not have when it was created."""
    for name, subject in subjects.items():
        if not node.file("pki", f"{name}.crt").is_file():
            _issue(node.file("pki"), name, subject, (), node.cluster.file("pki"))


def _create_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    if not folder.is_dir():
        work = folder.with_suffix(".new")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700, parents=True)
        fill(work)
        os.replace(work, folder)


def _kubelet_subject(node: Node) -> str:
    return f"/O=system:nodes/CN=system:node:{node.name}"


def _node_certificates(node: Node, folder: Path) -> None:
    """The certificates of a node beyond the first, signed by the cluster's authority."""
    authority = node.cluster.file("pki")
    names = [f"DNS:{node.name}", f"IP:{node.address}"]
    _issue(folder, "kubelet", _kubelet_subject(node), names, authority)
    for name in AGENTS:
        _issue(folder, name, client_subjects(node.cluster)[name], (), authority)


def _certificates(state: State, folder: Path) -> None:
    _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "ca.key")
    options = ("-days", str(DAYS), "-subj", f"/CN={state.context}")
    _openssl(folder, "req", "-x509", "-new", "-key", "ca.key", "-out", "ca.crt", *options)
    # Pods reach the API server at the first address of the service range.
    names = [f"IP:{address}" for address in ("127.0.0.1", state.node_address, state.services[1])]
    names += [
        f"DNS:{name}"
        for name in (
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        )
    ]
    _issue(folder, "apiserver", "/CN=kube-apiserver", names)
    first = state.control_plane
    for name, subject in client_subjects(state).items():
        _issue(
            folder,
            name,
            subject,
            [f"DNS:{first.name}", f"IP:{first.address}"] if name == "kubelet" else (),
        )
    # Service account tokens are signed with RSA: some client libraries support nothing else.
    _openssl(folder, "genrsa", "-out", "sa.key", "2048")
    _openssl(folder, "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")


def _issue(
    folder: Path, name: str, subject: str, names: Iterable[str], authority: Path | None = None
) -> None:
    """Issue a certificate. The authority is in the same folder unless it is named."""
    _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
    _openssl(folder, "req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
    extensions = "extendedKeyUsage=serverAuth,clientAuth\n"
    if joined := ",".join(names):
        extensions += f"subjectAltName={joined}\n"
    (folder / f"{name}.ext").write_text(extensions)
    home = authority or folder
    signer = ("-CA", str(home / "ca.crt"), "-CAkey", str(home / "ca.key"), "-CAcreateserial")
    options = ("-days", str(DAYS), "-extfile", f"{name}.ext")
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signer, *options, "-out", f"{name}.crt")


def _write_kubeconfig(node: Node, target: Path, name: str, server: str) -> None:
    def data(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    context, authority = node.cluster.context, data(node.cluster.file("pki", "ca.crt"))
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": context, "cluster": {"server": server, "certificate-authority-data": authority}}
        ],
        "users": [
            {
                "name": context,
                "user": {
                    "client-certificate-data": data(node.file("pki", f"{name}.crt")),
                    "client-key-data": data(node.file("pki", f"{name}.key")),
                },
            }
        ],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "current-context": context,
    }
    write_whole(target, yaml.safe_dump(document, sort_keys=False), 0o600)


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrainfleetError(
            "a certificate cannot be created",
            [Problem(f"openssl {arguments[0]}", done.stderr.strip()[-300:])],
        )
