"""The bootstrap of a new repository by the commands of its page, on simulated clouds, with a local code host.

Moving the state into the new bucket is not run: it needs the cloud's key service.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ci.actions import write_gh
from tests.ci.clouds import Clouds
from tests.ci.forge import Forge, git

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1200)]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shell_of(home: Path, tools: Path, forge: Forge) -> Callable[[str, Path], str]:
    """Run a script in a folder, with the tools first on its path, as a person would; returns its output."""
    home.mkdir()
    environment = os.environ | {
        "HOME": str(home),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PULUMI_SKIP_CONFIRMATIONS": "true",
        "FORGE": str(forge.data),
        "GH_TOKEN": "token:",
    }

    def run(script: str, folder: Path) -> str:
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_a_person_bootstraps_the_account_once(simulated: Clouds, tmp_path: Path) -> None:
    clone, tools = tmp_path / "clone", tmp_path / "tools"
    answers = ("--cloud", "aws", "--name", "acme", "--owner", "ml@example.com")
    subprocess.run(
        [sys.executable, "-m", "trainfleet", "init", clone, *answers], check=True, capture_output=True
    )
    forge = Forge(tmp_path, clone)
    simulated.write_pulumi(tools)
    write_gh(tools)
    (tools / "trainfleet").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m trainfleet "$@"\n')
    (tools / "trainfleet").chmod(0o755)
    run = shell_of(tmp_path / "home", tools, forge)

    page = (clone / "bootstrap" / "README.md").read_text()
    rehearse, apply, variables = BLOCK.findall(page)
    assert "policies" in run(rehearse, clone)
    run(apply, clone / "bootstrap")
    roles = {each.outputs["name"] for each in simulated.cloud.everything() if each.token.endswith(":Role")}
    assert {"ci-plan", "ci-apply", "ci-break-glass"} <= roles
    run(variables, clone / "bootstrap")
    found = forge.read()["variables"]
    assert set(found) == {"", "dev", "prod"}
    assert found[""]["STATE_URL"].startswith("s3://")
    assert found[""]["PLAN_IDENTITY"].endswith(":role/ci-plan")
    assert (
        found["dev"]
        == found["prod"]
        == {"APPLY_IDENTITY": found[""]["PLAN_IDENTITY"].replace("plan", "apply")}
    )

    # Later: a change of the trust is reviewed as a change of access.
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", "Bootstrap the account")
    stack = clone / "bootstrap" / "Pulumi.bootstrap.yaml"
    stack.write_text(stack.read_text().replace("environments: [dev, prod]", "environments: [dev, prod, lab]"))
    review = "trainfleet diff bootstrap --stack bootstrap --base HEAD --worktree --json || test $? = 3"
    found = json.loads(run(review, clone))
    assert found["verdict"] == "widens access"
    assert found["policies"]["ran"]  # those of the repository
    (gained,) = found["access"]
    assert gained["change"] == "gained"
    assert "role ci-apply" in gained["text"]
    assert ":environment:lab" in gained["condition"]
