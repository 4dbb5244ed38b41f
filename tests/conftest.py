"""What every test may use: the checkout's root and the command line as a user calls it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell that starts jobs behind has them ignore Ctrl-C, and their children too
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture
def trainfleet(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Call `trainfleet ARGUMENTS` in a process of its own (cwd: the checkout, or `cwd=`); returns code, stdout and stderr."""

    def call(*arguments: str, cwd: Path = ROOT, timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).with_name("trainfleet")), *arguments],
            cwd=cwd,
            env=os.environ | {"NO_COLOR": "1", "COLUMNS": "160"} | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return call
