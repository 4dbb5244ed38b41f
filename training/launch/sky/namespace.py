"""The namespace of a user's context in which SkyPilot creates pods. A task cannot choose it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem
from trainfleet.training.launch.remote.kubernetes import contexts
from trainfleet.training.launch.sky.configure import config_path
from trainfleet.training.launch.sky.server import remote_endpoint

DEFAULT = "default"
"""The namespace of a context that names none, as for kubectl."""
PROJECT_CONFIG = ".sky.yaml"
"""SkyPilot's configuration of the current folder, which comes before the user's."""


@dataclass(frozen=True)
class _Setting:
    namespace: str
    source: str
    fix: str
    """What makes SkyPilot use another one."""


def namespace_of(context: str, requested: str | None, env: Mapping[str, str]) -> str:
    """The namespace that SkyPilot uses: that of its configuration, else that of the context.

    A context that this machine does not have, or that a team's server may have with another namespace, is
    taken to be in the requested one.

    Raises:
        InputError: another one is requested.
    """
    found = _configured(context, env)
    if found is None and not remote_endpoint(env, config_path(env)):
        found = _of_context(context, requested or "NS")
    if found is None:
        return requested or DEFAULT
    if requested not in (None, found.namespace):
        what = f"SkyPilot creates pods of {context} in `{found.namespace}`, the namespace in {found.source}"
        problem = Problem(f"--namespace {requested}", what, f"leave it out, or {found.fix}")
        raise InputError("SkyPilot cannot run this as requested", [problem])
    return found.namespace


def _configured(context: str, env: Mapping[str, str]) -> _Setting | None:
    """As SkyPilot resolves it (sky/skypilot_config.py, `get_effective_namespace`)."""
    project = Path(env.get("SKYPILOT_PROJECT_CONFIG") or PROJECT_CONFIG).expanduser()
    files = {path: _read(path) for path in (project, config_path(env))}
    active = next(_values(files, ("active_workspace",)), ("default", project))[0]
    for scope in (("workspaces", active), ()):
        for keys in (("context_configs", context), ()):
            path = (*scope, "kubernetes", *keys, "namespace")
            for namespace, file in _values(files, path):
                return _Setting(namespace, str(file), f"change `{'.'.join(path)}` there")
    return None


def _values(files: Mapping[Path, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    for file, document in files.items():
        found = document
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, str) and found:
            yield found, file


def _read(path: Path) -> Any:
    with contextlib.suppress(OSError, UnicodeDecodeError, yaml.YAMLError):
        return yaml_limits.load(path.read_text(encoding="utf-8"))
    return None


def _of_context(context: str, requested: str) -> _Setting | None:
    known, _ = contexts()
    if context not in known:
        return None
    fix = f"kubectl config set-context {context} --namespace {requested}"
    return _Setting(str(known[context].get("namespace") or DEFAULT), "your kubeconfig", fix)
