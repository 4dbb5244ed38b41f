"""The environment of a rehearsed program: an allow-list, so that no credential of the caller is in it.

The engine, the program and the processes of policy packs get the same environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.engine.isolation import MARK

PASSPHRASE = "rehearsal"
PASSED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TERM",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUTF8",
    "PYTHONHASHSEED",
    "PYTHONWARNINGS",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "TRAINFLEET_DATE",
    "TRAINFLEET_OWNER",
    "TRAINFLEET_PYTHON",
)
"""Variables that a program always gets: where things are and how text is written. `*` is any text."""
PASSED_WITH_NETWORK = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)
"""Passed with `--network` only: the URL of a proxy may have a password."""
_NOWHERE = "http://127.0.0.1:9"
"""A proxy that nothing serves (port 9 is `discard`): the engine itself fetches remote assets through it."""


@dataclass(frozen=True)
class Access:
    """What a rehearsed program may reach: the network, and further variables of the caller's environment."""

    network: bool = False
    variables: tuple[str, ...] = ()


def environment(folder: Path, access: Access, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a rehearsal whose files are in `folder`.

    Raises:
        InputError: a requested variable is not set, or is one that the rehearsal sets.
    """
    patterns = (*PASSED, *(PASSED_WITH_NETWORK if access.network else ()))
    kept = {
        name: value
        for name, value in given.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns) or name in access.variables
    }
    own = _own(folder, kept.get("PATH", os.defpath), network=access.network)
    _check(access.variables, given, own)
    return kept | own


def _check(names: Iterable[str], given: Mapping[str, str], own: Mapping[str, str]) -> None:
    problems = [
        Problem(f"--env {name}", "is not set in this environment", f"export {name}=..., or omit it")
        for name in names
        if name not in given
    ]
    problems += [
        Problem(f"--env {name}", "is set by the rehearsal itself", "omit it") for name in names if name in own
    ]
    if problems:
        raise InputError("a variable cannot be passed", problems)


def _own(folder: Path, path: str, *, network: bool) -> dict[str, str]:
    """Return the variables of the engine: state in the folder, no downloads, no telemetry, no credentials."""
    nothing = str(folder / "home" / "none")
    closed = {
        MARK: "1",
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _NOWHERE),
    }
    # gRPC reads these too, and would look for the engine behind the proxy.
    closed |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
    return {
        **({} if network else closed),
        "PATH": f"{folder / 'bin'}{os.pathsep}{path}",
        "TMPDIR": str(folder / "tmp"),
        "PULUMI_HOME": str(folder / "home"),
        # Without metadata=skip, the engine writes an .attrs file per state file, and not atomically.
        # Killing the engine at that moment leaves a state that cannot be loaded ("failed to load checkpoint:
        # EOF").
        "PULUMI_BACKEND_URL": f"file://{folder / 'state'}?metadata=skip",
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_DEBUG_COMMANDS": "true",
        # Write the state once per command instead of after each resource. This takes half the time, and the
        # final state is the same.
        "PULUMI_EXPERIMENTAL": "true",
        "PULUMI_SKIP_CHECKPOINTS": "true",
        "PULUMI_DIY_BACKEND_DISABLE_CHECKPOINT_BACKUPS": "true",
        "AWS_CONFIG_FILE": nothing,
        "AWS_SHARED_CREDENTIALS_FILE": nothing,
        "AWS_EC2_METADATA_DISABLED": "true",
        "KUBECONFIG": nothing,
        "GOOGLE_APPLICATION_CREDENTIALS": nothing,
        "CLOUDSDK_CONFIG": nothing,
        "AZURE_CONFIG_DIR": nothing,
        "PYTHONDONTWRITEBYTECODE": "",
    }
