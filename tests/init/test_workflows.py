"""The generated CI: valid workflows, and no credential within reach of a pull request's code."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.init.test_init import answers
from trainfleet.init.render import render
from trainfleet.init.requirement import Requirement
from trainfleet.toolchain import cache_folder, find_go, run_go

ACTIONLINT = "v1.7.12"


def workflows() -> dict[str, str]:
    """The GitHub workflows of a new repository."""
    files = render(answers("aws"), Requirement())
    return {name: text for name, text in files.items() if name.startswith(".github/workflows/")}


@pytest.fixture(scope="module")
def actionlint() -> Path:
    """actionlint, built once into the user's cache."""
    target = cache_folder() / f"actionlint-{ACTIONLINT}" / "actionlint"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        go = find_go(lambda _: None)
        command = [str(go), "build", "-o", str(target), "github.com/rhysd/actionlint/cmd/actionlint"]
        run_go(command, Path(__file__).with_name("actionlint"), lambda _: None, "actionlint")
    return target


def test_actionlint_accepts_every_workflow(actionlint: Path, tmp_path: Path) -> None:
    found = workflows()
    assert len(found) == 2
    for name, text in found.items():
        (tmp_path / Path(name).name).write_text(text)
    done = subprocess.run(
        [actionlint, *sorted(tmp_path.iterdir())], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_actionlint_finds_a_mistake(actionlint: Path, tmp_path: Path) -> None:
    name = ".github/workflows/review.yml"
    (tmp_path / "review.yml").write_text(
        workflows()[name].replace("needs.diff.outputs.code", "needs.dif.outputs.code")
    )
    done = subprocess.run([actionlint, tmp_path / "review.yml"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "dif" in done.stdout


@pytest.mark.parametrize("name", sorted(workflows()))
def test_a_pull_request_reaches_no_credential(name: str) -> None:
    document: dict[Any, Any] = yaml.safe_load(workflows()[name])
    events = document[True]  # YAML 1.1 reads `on` as true
    assert "pull_request_target" not in events
    assert "workflow_run" not in events
    assert document["permissions"] == {"contents": "read"}
    assert "secrets." not in workflows()[name]
    for job in document["jobs"].values():
        runs_code = any("checkout" in str(step.get("uses", "")) for step in job["steps"])
        writes = {key for key, value in job.get("permissions", {}).items() if value == "write"}
        assert not (runs_code and writes), "code of a pull request next to a token that writes"
        for step in job["steps"]:
            if "checkout" in str(step.get("uses", "")):
                assert step["with"]["persist-credentials"] is False
            # Text of a pull request in a script is run by the shell.
            assert "${{" not in step.get("run", "")
