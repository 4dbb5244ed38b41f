"""SkyPilot's API server on this machine: started before a launch, and to outlive it.

Used by `trainfleet.training.launch.sky`. Easy to get wrong: a launch ends whatever its processes have left
behind, so a server that SkyPilot's client
starts in the midst of one would end with it, and every managed job with the server.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import yaml

from trainfleet.errors import Problem, TrainfleetError

TRIES = 4
"""SkyPilot's client gives a server that it starts a minute, too little on a busy machine, where the server
comes all the same.
"""
ANSWER_S = 5.0


def wake(env: Mapping[str, str], config: Path) -> None:
    """See that the server answers, unless the user has one elsewhere.

    Raises:
        TrainfleetError: it does not come.
    """
    if env.get("SKYPILOT_API_SERVER_ENDPOINT") or _elsewhere(config):
        return
    said = ""
    for _ in range(TRIES):
        if answers(env):
            return
        command = [sys.executable, "-c", "from sky.client import sdk; sdk.api_start()"]
        # Outside of the caller's session, as a server that Ctrl-C in this terminal ends is of no use to the
        # next launch.
        done = subprocess.run(
            command,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
    if not answers(env):
        fix = "~/.sky/api_server/server.log says why; `sky api stop`, then the same command again"
        raise TrainfleetError("SkyPilot's server does not start", [Problem("", said, fix)])


def answers(env: Mapping[str, str]) -> bool:
    """Whether the server on this machine is there."""
    port = env.get("SKYPILOT_API_SERVER_LOCAL_PORT", "46580")
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=ANSWER_S) as answer,
    ):
        return bool(answer.status == 200)
    return False


def _elsewhere(config: Path) -> bool:
    with contextlib.suppress(OSError, yaml.YAMLError, AttributeError):
        return bool(
            ((yaml.safe_load(config.read_text(encoding="utf-8")) or {}).get("api_server") or {}).get(
                "endpoint"
            )
        )
    return False
