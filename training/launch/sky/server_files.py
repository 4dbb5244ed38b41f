"""What the administrator of a team's SkyPilot server installs: the clusters' logins, and Helm values.

Keys of the values: `charts/skypilot/values.yaml` of skypilot-org/skypilot.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from trainfleet.infra.outputs.contract import PlatformOutputs
from trainfleet.training.launch.sky.config import context_config, context_name, merged
from trainfleet.training.launch.sky.kubeconfig import Requested, with_context

KUBECONFIG, VALUES = "kubeconfig", "values.yaml"
SECRET = "kube-credentials"
"""The chart's default name of the Secret."""
SECRET_MODE = 0o600


def server_files(
    platforms: Sequence[tuple[PlatformOutputs, str | Requested | None]], *, managed: bool = False
) -> dict[str, str]:
    """The files by name, for platforms with their launchers' tokens.

    Args:
        platforms: each with the launcher's token; a login of another kind is of no use to a server.
        managed: whether the server runs the controllers of managed jobs itself.

    Raises:
        InputError: a platform has no login that a server could use.
    """
    access: dict[str, Any] = {}
    problems = []
    for outputs, login in platforms:
        if isinstance(login, str):
            access = with_context(access, outputs, login, file=Path(KUBECONFIG))
        else:
            what = "a server has no cloud login with which it could request tokens"
            fix = "`layer.launcher_token: true` in its spec, and --token-file STACK=FILE with that token"
            problems.append(Problem(outputs.name, what, fix))
    if problems:
        raise InputError("the server cannot log in to a cluster", problems)
    configs = {context_name(outputs): context_config(outputs) for outputs, _ in platforms}
    config = yaml.safe_dump(merged({}, configs, managed=managed), sort_keys=False, width=150)
    values = {
        "kubernetesCredentials": {
            "useApiServerCluster": False,
            "useKubeconfig": True,
            "kubeconfigSecretName": SECRET,
        },
        "apiService": {"config": config},
    }
    return {KUBECONFIG: yaml.safe_dump(access, sort_keys=False, width=150), VALUES: _as_yaml(values)}


def write_server_files(folder: Path, files: dict[str, str]) -> list[Path]:
    """Write the files, readable by this user only.

    Raises:
        InputError: one cannot be written.
    """
    for name, text in files.items():
        write_whole(folder / name, text, SECRET_MODE)
    return [folder / name for name in files]


def how_to_install(folder: Path) -> list[str]:
    """The administrator's commands, and the users'."""
    return [
        f"kubectl -n skypilot create secret generic {SECRET} --from-file=config={folder / KUBECONFIG}",
        f"helm upgrade --install skypilot skypilot/skypilot --namespace skypilot --values {folder / VALUES}",
        f"rm {folder / KUBECONFIG}   # it holds the clusters' tokens",
        "users, each once: sky api login -e https://ADDRESS_OF_THE_SERVER",
    ]


def _as_yaml(values: dict[str, Any]) -> str:
    """The values, with the configuration as a block of lines."""

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, width=150)
