"""The folder of a local cluster."""

from __future__ import annotations

import os
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from trainfleet.local_cluster import state


def test_a_folder_is_removed_while_something_else_removes_files_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = state.create("gone", IPv4Network("10.1.0.0/20"))
    layer = made.folder / "containers" / "layer"
    layer.mkdir(parents=True)
    for number in range(5):
        (layer / f"{number}.pyc").touch()
    unlink, raced = os.unlink, []

    def slower(path: Any, **options: Any) -> None:
        if not raced:  # containerd was faster with this file
            raced.append(path)
            unlink(path, **options)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", slower)
    made.remove()
    assert raced
    assert not made.folder.exists()
    assert state.load("gone") is None
