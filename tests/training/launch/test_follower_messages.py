"""Messages between the processes of a launch: each replaces the one before atomically and is for this user alone."""

from __future__ import annotations

import resource
import stat
from pathlib import Path

import pytest

from trainfleet.errors import InputError
from trainfleet.training.launch.remote.follower import Detached


def test_a_message_that_does_not_fit_on_the_disk_leaves_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "detached.json"
    Detached(job="first", how=[]).write(file)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # a full disk
    try:
        with pytest.raises(InputError, match="cannot write a file"):
            Detached(job="second", how=[]).write(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert Detached.read(file).job == "first"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]
