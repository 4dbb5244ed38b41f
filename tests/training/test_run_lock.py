"""The temporary folder of a launch has a path that is short enough for Ray's sockets."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from trainfleet.training.runtime.run_lock import LONGEST_ROOT, workspace

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
