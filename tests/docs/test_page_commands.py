"""The commands of pages that are quick enough for a test: knowledge.md, own-repository.md, rehearsal.md,
diff.md, multi-cloud.md, ray-up.md, several-clusters.md, first-apply/aws.md, first-apply/gcp.md, first-apply/azure.md,
training-image.md.

Each page's blocks marked with this file run in one shell, in a clone of the repository.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.pages import ROOT, blocks

NAME = "tests/docs/test_page_commands.py"
PAGES = re.findall(r"[\w/-]+\.md", __doc__ or "")
QUICK = ("knowledge.md", "ray-up.md")
"""Pages whose commands take less than two seconds."""
FINE = {0, 2, 3}
"""Exit codes of commands that worked: `trainfleet diff` answers 2 and 3 when there are changes."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The repository as it is committed, in a folder of its own."""
    folder = tmp_path / "trainfleet"
    subprocess.run(["git", "clone", "--quiet", "--local", ROOT, folder], check=True)
    return folder


def commands(page: str) -> list[str]:
    """The commands of a page's blocks that this test runs; a line that ends with a backslash continues."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    bodies = [each.body for each in blocks(text) if each.kind == "run" and each.value == NAME]
    joined = "".join(bodies).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip()]


@pytest.mark.parametrize("page", QUICK)
def test_the_quick_commands_of_a_page_work_as_written(page: str, clone: Path) -> None:
    run(page, clone)


@pytest.mark.timeout(900)
@pytest.mark.deep
@pytest.mark.parametrize("page", [page for page in PAGES if page not in QUICK])
def test_the_commands_of_a_page_work_as_written(page: str, clone: Path) -> None:
    run(page, clone)


def run(page: str, clone: Path) -> None:
    """Run a page's commands in a clone, as written."""
    found = commands(page)
    assert found, f"docs/{page} has no block marked `run: {NAME}`"
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NO_COLOR": "1",
    }
    environment.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # the engine is built there
    environment["HOME"] = str(clone.parent)
    environment["TMPDIR"] = str(clone.parent)  # for `mktemp`
    for command in found:
        done = subprocess.run(
            ["bash", "-c", command], cwd=clone, env=environment, capture_output=True, text=True, check=False
        )
        allowed = FINE if " diff " in command else {0}
        assert done.returncode in allowed, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
