"""New repositories, made by the command line as a user calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ACCOUNTS = {"gcp": "acme-ml-123456", "azure": "11111111-2222-3333-4444-555555555555"}
CLOUDS = ("aws", "gcp", "azure", "local")
Init = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def init(tmp_path: Path) -> Init:
    """`trainfleet init` in an empty folder; with a terminal if there are answers to type. Git has no user."""
    environment = os.environ | {"HOME": str(tmp_path), "NO_COLOR": "1", "COLUMNS": "200"}

    def run(
        *arguments: str | Path, cwd: Path = tmp_path, answers: str = ""
    ) -> subprocess.CompletedProcess[str]:
        typed, terminal = os.openpty() if answers else (-1, subprocess.DEVNULL)
        try:
            if answers:
                os.write(typed, answers.encode())
            return subprocess.run(
                [sys.executable, "-m", "trainfleet", "init", *arguments],
                cwd=cwd,
                env=environment,
                stdin=terminal,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
        finally:
            for end in (typed, terminal):
                if end >= 0:
                    os.close(end)

    return run


def options(cloud: str, *more: str) -> tuple[str, ...]:
    """The answers for a cloud."""
    account = ("--account", ACCOUNTS[cloud]) if cloud in ACCOUNTS else ()
    return ("--cloud", cloud, "--name", "acme", "--owner", "ml@example.com", *account, *more)
