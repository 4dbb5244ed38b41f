"""Resolves the target cluster: the built-in one by name, or any other by context and with consent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, MissingToolError, Problem
from trainfleet.local_cluster.state import State
from trainfleet.suggestions import did_you_mean

_TIMEOUT_S = 30


@dataclass(frozen=True)
class Target:
    """A reachable cluster: the kubectl command with its flags and, for the built-in cluster, its state."""

    context: str
    kubectl: tuple[str, ...]
    built_in: State | None = None
    document: dict[str, Any] = field(default_factory=dict, repr=False)
    """A kubeconfig of the cluster without credentials, for the program."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment for kubectl; the built-in cluster is reached without a proxy."""
        return {
            key: value
            for key, value in os.environ.items()
            if self.built_in is None or not key.lower().endswith("_proxy")
        }

    def write_kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig with the cluster's address and no credentials for the program."""
        path.write_text(json.dumps(self.document))
        return path


def built_in(name: str) -> Target:
    """Return the cluster of `trainfleet cluster up --name NAME`.

    Raises:
        InputError: the cluster does not exist or is not running.
    """
    from trainfleet.local_cluster import builds, node, pins, state

    it = state.load(name)
    start = state.up_command(name, "--no-image")
    if it is None:
        there = state.names()
        raise InputError(
            "no such cluster",
            [
                Problem(
                    "--on-cluster",
                    f"there is no cluster {name}",
                    did_you_mean(name, there) if there else start,
                )
            ],
        )
    if node.pid_of(it.control_plane) is None or not builds.executable(pins.KUBE).is_file():
        raise InputError("the cluster is not running", [Problem("--on-cluster", f"{name} is stopped", start)])
    kubectl = (
        str(builds.executable(pins.KUBE)),
        "kubectl",
        f"--kubeconfig={it.kubeconfig}",
        f"--context={it.context}",
    )
    return _described(Target(it.context, kubectl, it))


def named(context: str, *, agreed: bool) -> Target:
    """Return the cluster of a kubeconfig context, if the user agrees to create and delete objects there.

    Raises:
        InputError: the context does not exist, or the user did not agree.
        MissingToolError: kubectl is not installed.
    """
    found = shutil.which("kubectl")
    if found is None:
        raise MissingToolError(
            "--context needs kubectl",
            [Problem("kubectl", "is not on PATH", "install it")],
        )
    target = _described(Target(context, (found, f"--context={context}")))
    server = target.document["clusters"][0]["cluster"].get("server", "")
    if not agreed and not _agrees(context, server):
        what = f"the stack's objects would be created and deleted in {context} ({server})"
        raise InputError("this needs your confirmation", [Problem("--context", what, "add --yes")])
    return target


def _agrees(context: str, server: str) -> bool:
    from trainfleet.console import err

    if not sys.stdin.isatty():
        return False
    err().print(
        f"The stack's objects will be created in {context} ({server}) and deleted at the end. Type the"
        " context's name to agree:",
        markup=False,
    )
    return sys.stdin.readline().strip() == context


def _described(target: Target) -> Target:
    from trainfleet.infra.local.kubeconfig import without_credentials

    command = [*target.kubectl, "config", "view", "--minify", "--flatten", "--raw", "-o", "json"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, env=target.environment
        )
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, 1, "", f"kubectl did not answer in {_TIMEOUT_S} s")
    if done.returncode:
        reason = (done.stderr.strip() or "kubectl failed").splitlines()[-1].removeprefix("error: ")
        raise InputError("no such context", [Problem("--context", reason, ", ".join(_contexts(target)))])
    cluster = dict(json.loads(done.stdout)["clusters"][0]["cluster"])
    return Target(
        target.context, target.kubectl, target.built_in, without_credentials(target.context, cluster)
    )


def _contexts(target: Target) -> list[str]:
    done = subprocess.run(
        [target.kubectl[0], "config", "get-contexts", "-o", "name"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()
