"""The `az` of the harness: `az aks install-cli`, whose kubelogin is the second part of this file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path


def install(arguments: list[str]) -> None:
    """Write a kubectl that nobody may call, and a kubelogin."""
    parser = argparse.ArgumentParser()
    for name in ("--install-location", "--kubelogin-install-location"):
        parser.add_argument(name, type=Path, required=True)
    for name in ("--client-version", "--kubelogin-version"):
        parser.add_argument(name, required=True)
    given = parser.parse_args(arguments)
    for file, text in (
        (given.install_location, "exit 1"),
        (given.kubelogin_install_location, f'exec "{sys.executable}" "{__file__}" kubelogin "$@"'),
    ):
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)


def log_in(arguments: list[str]) -> None:
    """Print a login for a cluster: AAD_LOGIN_METHOD is stronger than `--login` (kubelogin, UpdateFromEnv)."""
    from azure.identity import WorkloadIdentityCredential

    if os.environ.get("AAD_LOGIN_METHOD") != "workloadidentity":
        sys.exit("ERROR: please run 'az login' to setup account")
    server = arguments[arguments.index("--server-id") + 1]
    token = WorkloadIdentityCredential().get_token(f"{server}/.default").token
    document = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": {"token": token},
    }
    sys.stdout.write(json.dumps(document))


if sys.argv[1:3] == ["aks", "install-cli"]:
    install(sys.argv[3:])
elif sys.argv[1:3] == ["kubelogin", "get-token"]:
    log_in(sys.argv[3:])
else:
    sys.exit(f"the harness has no `az {' '.join(sys.argv[1:])}`")
