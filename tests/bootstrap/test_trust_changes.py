"""A changed trust condition of a bootstrap stack is reviewed as a change of access, on every cloud."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bootstrap.specs import CLOUDS, STACKS

Trainfleet = Callable[..., subprocess.CompletedProcess[str]]
GIT = ("git", "-c", "user.name=me", "-c", "user.email=me@example.com")


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_another_repository_gains_access_and_the_first_one_loses_it(
    cloud: str, trainfleet: Trainfleet, tmp_path: Path
) -> None:
    project = tmp_path / "bootstrap"
    shutil.copytree(STACKS, project, ignore=shutil.ignore_patterns("__pycache__"))
    for command in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message", "Begin")):
        subprocess.run([*GIT, *command], cwd=project, check=True)
    stack = project / f"Pulumi.bootstrap-{cloud}.yaml"
    stack.write_text(
        stack.read_text().replace("repository: example-org/platforms", "repository: other-org/copy")
    )
    arguments = ("--stack", f"bootstrap-{cloud}", "--base", "HEAD", "--worktree", "--json")
    done = trainfleet("diff", str(project), *arguments)
    assert done.returncode == 3, done.stdout + done.stderr
    access = json.loads(done.stdout)["access"]
    assert access
    for each in access:
        mine, other = ("other-org/copy", "example-org/platforms")[:: 1 if each["change"] == "gained" else -1]
        assert mine in each["condition"], each
        assert other not in each["condition"], each
    assert {each["change"] for each in access} == {"gained", "lost"}
    page = trainfleet("diff", str(project), *arguments[:-1], "--format", "markdown").stdout
    rows = [line for line in page.splitlines() if line.startswith(("| gained", "| lost"))]
    assert len(rows) == len(access)
    for row in rows:  # the table does not cut what changed
        assert ("other-org/copy" if row.startswith("| gained") else "example-org/platforms") in row
