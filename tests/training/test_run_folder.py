"""The folder of a finished run has the released layout: files, kinds and keys of rows, run.json and the
record of each launch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.snapshots import read, surfaces
from tests.training.launches import Launcher


@pytest.mark.launch
@pytest.mark.timeout(900)
def test_a_finished_run_has_the_released_layout(tmp_path: Path, text_folder: Path, cache: Path) -> None:
    launcher = Launcher(tmp_path / "runs", text_folder, cache)
    try:
        launch = launcher("layout", "scaling.workers=1", "steps=16")
        code, _, err = launch.finish()
        assert code == 0, err
        found = surfaces.run_folder(launch.run_dir)
    finally:
        launcher.end()
    assert found == read("run_folder")
