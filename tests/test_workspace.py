"""Temporary folders: paths that are short enough for the sockets of Ray, and nothing left by a killed process."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from trainfleet.workspace import LONGEST_ROOT, workspace

SOCKET = "ray/session_2026-11-24_03-27-07_113010_4194304/sockets/plasma_store"
LIMIT = 107
"""Of a socket's path on Linux (unix(7))."""


@pytest.mark.parametrize("longer", [0, 1, 60])
def test_the_sockets_of_ray_fit_below_any_temporary_folder(
    longer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = "/tmp".ljust(LONGEST_ROOT + longer, "x")
    monkeypatch.setattr(tempfile, "tempdir", root)
    made: list[Path] = []

    def named(prefix: str, **keywords: Path) -> str:
        made.append(keywords["dir"])
        return f"{keywords['dir']}/{prefix}{'r' * 8}"

    monkeypatch.setattr(tempfile, "mkdtemp", named)
    with workspace() as work:
        socket = str(work / SOCKET)
    assert len(socket) <= LIMIT
    assert made == [Path(root if not longer else "/tmp")]


KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "here",
    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    "clusters": [
        {"name": "here", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority-data": "Q0E="}}
    ],
    "users": [{"name": "me", "user": {"client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ"}}],
}
"""The client writes its certificates and its key to files."""
CONNECT = """
import json, os, signal, sys
from trainfleet.training.launch.remote.kubernetes import connect
connect(None, sys.argv[1], "here", "default")
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["ended", "killed"])
def test_no_key_of_a_kubeconfig_stays_in_a_file(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(tempfile.mkdtemp(prefix="keys", dir="/tmp"))
    try:
        env = os.environ | {"TMPDIR": str(root), "KUBECONFIG": str(tmp_path / "none")}
        command = [sys.executable, "-c", CONNECT, json.dumps(KUBECONFIG), end]
        assert subprocess.run(command, env=env, check=False).returncode == (-9 if end == "killed" else 0)
        left = [each for each in root.rglob("*") if each.is_file()]
        assert len(left) == (3 if end == "killed" else 0), left
        assert all(stat.S_IMODE(each.parent.stat().st_mode) == 0o700 for each in left)
        monkeypatch.setattr(tempfile, "tempdir", str(root))
        with workspace() as own:
            assert list(root.iterdir()) == [own], "the next process removes them"
    finally:
        shutil.rmtree(root)
