"""SkyPilot's API server on this machine, started before a launch.

NOTE: a launch ends everything that its processes leave behind. A server that SkyPilot's client started during
a launch would end with it, and every managed job with the server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import yaml

from trainfleet.errors import MissingToolError, Problem, TrainfleetError

TRIES = 4
"""SkyPilot's client waits a minute for the server, which on a busy machine may start later."""
TIMEOUT_S = 5.0
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


def ensure_server(env: Mapping[str, str], config: Path) -> None:
    """Start the server if it does not answer, unless the user has one elsewhere.

    Raises:
        MissingToolError: this machine lacks programs that the server calls.
        TrainfleetError: it does not start.
    """
    if env.get("SKYPILOT_API_SERVER_ENDPOINT") or _is_remote(config):
        return
    if missing := missing_tools():
        raise MissingToolError("SkyPilot cannot work on this machine", missing)
    last_line = ""
    for _ in range(TRIES):
        if answers(env):
            return
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
    port = env.get("SKYPILOT_API_SERVER_LOCAL_PORT", "46580")
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=TIMEOUT_S) as response,
    ):
        return bool(response.status == 200)
    return False


def _is_remote(config: Path) -> bool:
    with contextlib.suppress(OSError, yaml.YAMLError, AttributeError):
        return bool(
            ((yaml.safe_load(config.read_text(encoding="utf-8")) or {}).get("api_server") or {}).get(
                "endpoint"
            )
        )
    return False
