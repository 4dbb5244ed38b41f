"""`launch --code` with whole trainings: the ranks import the archive, which is removed afterwards, and the
code may import Ray.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.training.user_code import FEW_STEPS, write_page

pytestmark = pytest.mark.timeout(600)


@pytest.mark.launch
@pytest.mark.sampled(1)
@pytest.mark.parametrize("on", ["torchrun", "local"])
def test_ranks_import_the_code_that_was_launched(on: str, tmp_path: Path) -> None:
    """The code imports Ray before Trainfleet starts it."""
    recipe = write_page(tmp_path / "scratch", unit="as edited")
    workload = recipe.with_suffix(".py")
    workload.write_text(workload.read_text().replace("import torch\n", "import ray\nimport torch\n", 1))
    (tmp_path / "cwd").mkdir()
    write_page(tmp_path / "cwd", unit="of the current folder")
    before = set(Path(tempfile.gettempdir()).glob("trainfleet-code-*/*"))
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("trainfleet")), "launch", str(recipe), "--on", on),
            *("--storage", str(tmp_path / "runs"), "--json", *FEW_STEPS),
        ],
        cwd=tmp_path / "cwd",
        env=os.environ | {"NO_COLOR": "1", "TRAINFLEET_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run_dir = tmp_path / "runs" / "spirals"
    record = json.loads((run_dir / "run.json").read_text())
    assert record["unit"] == "as edited"
    (launched,) = record["launches"]
    assert [start["code"] for start in record["starts"]] == [launched["code"]["digest"]]
    assert [path.name for path in (run_dir / "code").iterdir()] == [f"{launched['code']['digest']}.tar.gz"]
    assert launched["code"]["digest"][:12] in (run_dir / "report.html").read_text()
    assert set(Path(tempfile.gettempdir()).glob("trainfleet-code-*/*")) == before, "it was left unpacked"


def test_a_ray_that_was_imported_earlier_also_asks_for_the_token(tmp_path: Path) -> None:
    program = """
import ray
from trainfleet.training.runtime.ray_cluster import require_token
require_token()
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
ensure_token_if_auth_enabled()
print(ray._raylet.get_authentication_mode() == ray._raylet.AuthenticationMode.TOKEN)
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr
    assert not list(tmp_path.iterdir()), "Ray wrote a token of its own"
