"""The variables that the follower sets for SkyPilot's client."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainfleet.training.launch.sky.skypilot import VERSION, set_client_options

needs_skypilot = pytest.mark.skipif(
    importlib.util.find_spec("sky") is None, reason="needs SkyPilot: pip install 'trainfleet[sky]'"
)
LOGS = """
import sky
from sky import sky_logging
from trainfleet.training.launch.sky.skypilot import messages_to_stderr

logger = sky_logging.init_logger("sky.client.sdk")
logger.info("\\033[32mon stdout\\033[0m")
messages_to_stderr()
logger.info("\\033[32mon stderr\\033[0m")
"""
GRPC, REPORTS = "SKYPILOT_ENABLE_GRPC", "SKYPILOT_DISABLE_USAGE_COLLECTION"


@pytest.fixture(autouse=True)
def _no_own_values(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set and deleted, so that what the function sets is removed afterwards.
    for name in (GRPC, REPORTS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_a_cluster_that_outlives_its_runs_is_called_through_grpc() -> None:
    set_client_options(kept=True)
    assert (os.environ[GRPC], os.environ[REPORTS]) == ("1", "1")


def test_pods_of_one_run_are_called_as_skypilot_does_by_default() -> None:
    set_client_options(kept=False)
    assert GRPC not in os.environ
    assert os.environ[REPORTS] == "1"


def test_the_user_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GRPC, "0")
    monkeypatch.setenv(REPORTS, "0")
    set_client_options(kept=True)
    assert (os.environ[GRPC], os.environ[REPORTS]) == ("0", "0")


@needs_skypilot
def test_skypilot_still_has_the_option() -> None:
    found = importlib.util.find_spec("sky")
    assert found is not None
    assert found.origin is not None
    text = (Path(found.origin).parent / "utils" / "env_options.py").read_text(encoding="utf-8")
    assert f"ENABLE_GRPC = ('{GRPC}', False)" in text, f"another default or name than in SkyPilot {VERSION}"


@needs_skypilot
def test_skypilots_messages_are_plain_lines_on_stderr() -> None:
    """Stdout has the lines of a run, and only JSON with `--json`."""
    done = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, check=True)
    assert done.stdout == "\x1b[32mon stdout\x1b[0m\n"
    assert done.stderr.splitlines()[-1] == "on stderr"
