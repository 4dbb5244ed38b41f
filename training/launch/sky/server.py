"""SkyPilot's API server: a team's, or the one on this machine, which is started before a launch.

A launch ends everything that its processes leave behind, except this server (`orphan_reaper.DAEMONS`):
SkyPilot's client starts it again if it ended during a launch, and managed jobs would end with it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import MissingToolError, Problem, TrainfleetError
from trainfleet.training.launch.sky.server_leftovers import end_leftovers

TRIES = 4
"""SkyPilot's client waits a minute for the server, which on a busy machine may start later."""
TIMEOUT_S = 5.0
REMOTE_TIMEOUT_S = 15.0
TOOLS = ("kubectl", "socat", "nc", "rsync", "ssh")
"""What SkyPilot calls on the machine of its API server."""


def missing_tools() -> list[Problem]:
    """Programs that SkyPilot calls and this machine lacks."""
    packages = {"nc": "netcat-openbsd", "ssh": "openssh-client"}
    return [
        Problem("", f"`{tool}` is not on the path", f"install {packages.get(tool, tool)}")
        for tool in TOOLS
        if shutil.which(tool) is None
    ]


def remote_endpoint(env: Mapping[str, str], config: Path) -> str:
    """The address of a team's server, as `sky api login` sets it; empty for the one on this machine."""
    configured = ""
    with contextlib.suppress(OSError, yaml.YAMLError, AttributeError):
        document = yaml_limits.load(config.read_text(encoding="utf-8")) or {}
        configured = str((document.get("api_server") or {}).get("endpoint") or "")
    found = (env.get("SKYPILOT_API_SERVER_ENDPOINT") or configured).rstrip("/")
    local = [f"http://{host}:{local_port(env)}" for host in ("127.0.0.1", "localhost", "0.0.0.0")]
    return "" if found in local else found


def shown(endpoint: str) -> str:
    """An address without the password that it may hold."""
    return re.sub(r"//[^/@]*@", "//", endpoint)


def require_server(endpoint: str) -> None:
    """Check that a team's server can be reached. Any response counts: the client logs in by itself.

    Raises:
        TrainfleetError: it cannot.
    """
    try:
        with urllib.request.urlopen(f"{shown(endpoint)}/api/health", timeout=REMOTE_TIMEOUT_S):
            return
    except urllib.error.HTTPError:
        return
    except (OSError, ValueError) as error:
        fix = "is it the address of `sky api info`, and are you in its network? `sky api login` sets another"
        problem = Problem(shown(endpoint), f"does not answer ({error})", fix)
        raise TrainfleetError("SkyPilot's server cannot be reached", [problem]) from error


def ensure_server(env: Mapping[str, str], config: Path) -> None:
    """Start the server if it does not answer, unless the user has one elsewhere.

    Raises:
        MissingToolError: this machine lacks programs that the server calls.
        TrainfleetError: it does not start.
    """
    if remote_endpoint(env, config):
        return
    if missing := missing_tools():
        raise MissingToolError("SkyPilot cannot work on this machine", missing)
    last_line = ""
    for _ in range(TRIES):
        if answers(env):
            return
        end_leftovers(local_port(env))
        command = [sys.executable, "-c", "from sky.client import sdk; sdk.api_start()"]
        # In a session of its own, so that Ctrl-C in this terminal does not end the server.
        done = subprocess.run(
            command,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        last_line = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
    if not answers(env):
        fix = "see ~/.sky/api_server/server.log; run `sky api stop`, then the same command again"
        raise TrainfleetError("SkyPilot's server does not start", [Problem("", last_line, fix)])


def answers(env: Mapping[str, str]) -> bool:
    """Whether the server on this machine answers."""
    health = f"http://127.0.0.1:{local_port(env)}/api/health"
    with contextlib.suppress(OSError), urllib.request.urlopen(health, timeout=TIMEOUT_S) as response:
        return bool(response.status == 200)
    return False


def local_port(env: Mapping[str, str]) -> str:
    return env.get("SKYPILOT_API_SERVER_LOCAL_PORT", "46580")
