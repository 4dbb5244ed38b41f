"""Fixtures of every test: the checkout's root, the command line as a user calls it, and the check for leaks."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests import leaks
from trainfleet.rehearsal.engine.process_pool import sharing

# A shell that starts a job in the background has it ignore Ctrl-C, and its children too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


os.environ.setdefault("TRAINFLEET_DATE", "2026-11-22")
"""The day of all tests: support calendars end."""
SEED = os.environ.get("TRAINFLEET_TEST_SEED", "0")
"""Which sample of the long tests is tried at every change."""


def pytest_configure(config: pytest.Config) -> None:
    """Fail a session that leaves processes, files, mounts or network interfaces behind."""
    leaks.register(config, leaks.Places(ROOT, clusters="cluster" in (config.option.markexpr or "")))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import and collect tests without garbage collections, which would take a fifth of that time, and collect
    less often afterwards: with all tests and the provider SDKs in memory, it took a twelfth.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.set_threshold(50_000, 20, 20)
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Draw cases of each test marked `sampled` for `make test`, by the seed; mark the others as deep."""
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("deep"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for name, found in cases.items():
        marker = found[0].get_closest_marker("sampled")
        assert marker is not None
        count = marker.args[0] if isinstance(marker.args[0], int) else round(marker.args[0] * len(found))
        drawn = set(random.Random(f"{SEED} {name}").sample(range(len(found)), min(count, len(found))))
        for index, item in enumerate(found):
            if index not in drawn:
                item.add_marker(pytest.mark.deep)


@pytest.fixture(scope="session", autouse=True)
def _warm() -> Iterator[None]:
    """Share the process that has imported the provider SDKs between the rehearsals of one session."""
    with sharing():
        yield


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def unpacked_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with what the built wheel installs."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(folder / "installed")
    return folder / "installed"


@pytest.fixture
def trainfleet(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Call `trainfleet ARGUMENTS` in a process of its own (cwd: the checkout, or `cwd=`); returns code,
    stdout and stderr.
    """

    def call(
        *arguments: str, cwd: Path = ROOT, timeout: float = 240, **environment: str
    ) -> subprocess.CompletedProcess[str]:
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
