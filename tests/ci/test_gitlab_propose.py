"""The script of GitLab's job `propose`: the description of its merge request."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.ci.forge import Forge, git
from tests.init.test_gitlab import jobs


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    """A repository that opens merge requests for pushes."""
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "init", "--quiet", "--initial-branch", "main")
    (clone / "requirements.lock").write_text("acme-models==1.1\n")
    found = Forge(tmp_path, clone)
    found.accept_push_options()
    return found


def described(forge: Forge, review: str) -> str:
    """Run the job for a review; return the description."""
    lock, work = forge.clone / "requirements.lock", forge.folder / "work"
    lock.write_text("acme-models==1.2\n")
    patch = git(forge.clone, "diff", "--binary")
    subprocess.run(["git", "clone", "--quiet", forge.bare, work], check=True)
    (work / "update.patch").write_text(f"{patch}\n")
    (work / "update.md").write_text(review)
    settings = forge.folder / "gitconfig"
    url = "https://update:token@gitlab.test/acme/platform.git"
    git(forge.folder, "config", "--file", str(settings), f"url.file://{forge.bare}.insteadOf", url)
    known = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": str(settings),
        "CI_DEFAULT_BRANCH": "main",
        "CI_SERVER_HOST": "gitlab.test",
        "CI_PROJECT_PATH": "acme/platform",
        "UPDATE_TOKEN": "token",
    }
    script = "\n".join(jobs("aws")["propose"]["script"])
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=work,
        env=known,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (pull,) = json.loads(forge.data.read_text())["pulls"]
    assert (pull["branch"], pull["target"]) == ("weekly-update", "main")
    return str(pull["description"])


def test_the_description_is_the_review(forge: Forge) -> None:
    review = (
        "### 2 stacks: nothing changes\n\n| stack | verdict |\n|---|---|\n| `dev` | 100 % “fine” $HOME |\n"
    )
    assert described(forge, review) == review


def test_no_line_of_a_review_is_a_quick_action(forge: Forge) -> None:
    text = described(forge, "/merge\n  /approve\na\\n/label ~destructive-change\nhttps://example.com/a\n")
    assert [line for line in text.splitlines() if line.strip().startswith("/")] == []
    assert "https://example.com/a" in text


def test_a_long_review_is_cut(forge: Forge) -> None:
    text = described(forge, "é" * 99 + "\n" + f"{'x' * 200}\n" * 600)
    assert 50_000 < len(text.encode()) <= 60_000
