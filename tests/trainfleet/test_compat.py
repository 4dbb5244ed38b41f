"""The old import name `training` in user code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainfleet import compat
from trainfleet.training.workloads import settings
from trainfleet.training.workloads.base import Outcome, Workload

OLD_IMPORTS = """
from training.workloads import Outcome, Workload
from training.workloads.settings import WorkloadSettings
from training.workloads.vision_settings import VisionSettings
import training.workloads.vision

class Task:
    class Settings(WorkloadSettings):
        pass
    def fingerprint(self): ...
    def build_model(self): ...
    def size(self, split): ...
    def batch(self, split, indices): ...
    def weight(self, split, indices): ...
    def outcome(self, model, batch): ...
    def baseline(self, indices): ...
"""


@pytest.fixture(autouse=True)
def clean_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in an empty folder, and forget the modules and the finder of each test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if not (Path(each) / "training").is_dir()])
    monkeypatch.setattr(
        sys, "meta_path", [each for each in sys.meta_path if not isinstance(each, compat.OldNameFinder)]
    )
    yield
    for name in [each for each in sys.modules if each.split(".")[0] in ("training", "old_task")]:
        del sys.modules[name]


def test_a_users_workload_may_import_the_old_name_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "old_task.py").write_text(OLD_IMPORTS)
    with pytest.warns(DeprecationWarning, match="import `trainfleet.training` instead"):
        workload = settings.workload_of("old_task:Task")
    assert issubclass(workload, Workload)
    module = sys.modules["old_task"]
    assert (module.Outcome, module.Workload) == (Outcome, Workload)
    assert issubclass(module.VisionSettings, settings.WorkloadSettings)


def test_a_users_own_package_of_that_name_wins(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").write_text("OWNER = 'user'\n")
    (tmp_path / "old_task.py").write_text(
        "import training\n"
        "try:\n    import training.workloads\nexcept ImportError:\n    BELOW = None\n"
        "from trainfleet.training.workloads.vision.workload import Vision as Task\nTask.Settings = None\n"
        "OWNER = training.OWNER\n"
    )
    sys.path.insert(0, str(tmp_path))
    module = settings._import_module("old_task")
    assert (module.OWNER, module.BELOW) == ("user", None)


def test_nothing_else_makes_the_old_name_importable() -> None:
    with pytest.raises(ModuleNotFoundError):
        __import__("training.workloads")
