"""A new repository works: its `make` targets run, and its own policy is enforced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.init.conftest import CLOUDS, Init, options
from tests.init.test_init import answers
from trainfleet.init.render import render
from trainfleet.init.requirement import Requirement
from trainfleet.rehearsal import last_results

GIT = ("git", "-c", "user.name=me", "-c", "user.email=me@example.com")

OWNER = ("owner: ml@example.com", "owner: vision@example.com")
REDIS = ("ray: {", "ray: {redis: {mode: in-cluster}, ")
"""What a review is of. The owner is a tag of cloud resources, which an existing cluster has none of."""


def make(
    folder: Path, *targets: str, python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run targets with the packages of an interpreter."""
    return subprocess.run(
        ["make", *targets, f"PYTHON={python}"],
        cwd=folder,
        env=os.environ
        | {"CI": "", "NO_COLOR": "1", "COLUMNS": "200", "PYTEST_DEBUG_TEMPROOT": str(folder.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.deep
def test_a_repository_rehearses_and_passes_its_own_tests(init: Init, tmp_path: Path) -> None:
    assert init("mine", *options("local")).returncode == 0
    done = make(tmp_path / "mine", "lint", "rehearse", "test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "destroy" in done.stdout
    assert " passed" in done.stdout


def test_the_created_code_of_every_cloud_passes_its_linter(tmp_path: Path) -> None:
    for cloud in CLOUDS:
        for name, text in render(answers(cloud), Requirement()).items():
            file = tmp_path / cloud / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_check_ends_at_a_mistake_that_the_linter_finds(init: Init, tmp_path: Path) -> None:
    assert init("mine", *options("local")).returncode == 0
    workload = tmp_path / "mine" / "workloads" / "spirals.py"
    workload.write_text(f"{workload.read_text()}\n\ndef wrong():\n    return undefined_name\n")
    done = make(tmp_path / "mine", "check")
    assert done.returncode == 2
    assert "workloads/spirals.py" in done.stdout
    assert "undefined_name" in done.stdout
    assert "Everything passed" not in done.stdout


def test_a_missing_linter_is_named_with_its_command(init: Init, tmp_path: Path) -> None:
    assert init("mine", *options("local")).returncode == 0
    assert "ruff" in (tmp_path / "mine" / "requirements.txt").read_text()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without site-packages
    python.chmod(0o755)
    done = make(tmp_path / "mine", "lint", python=python)
    assert done.returncode == 2
    needed = f"ruff is not installed; run: {python} -m pip install --requirement requirements.txt"
    assert needed in done.stdout


@pytest.mark.deep
def test_the_repositorys_own_policy_is_enforced(init: Init, tmp_path: Path) -> None:
    assert init("mine", *options("aws")).returncode == 0
    folder = tmp_path / "mine"
    rules = folder / "policies" / "own_rules.py"
    rules.write_text(rules.read_text().replace("days < 30", "days < 3000"))
    command = [
        sys.executable,
        "-m",
        "trainfleet",
        "rehearse",
        "prod",
        "--policy-pack",
        "policies",
        "--until",
        "policies",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "logs-for-a-month" in done.stderr


@pytest.mark.deep
def test_a_review_names_what_a_change_does(init: Init, tmp_path: Path) -> None:
    assert init("mine", *options("local")).returncode == 0
    folder = tmp_path / "mine"
    subprocess.run([*GIT, "add", "-A"], cwd=folder, check=True)
    subprocess.run([*GIT, "commit", "--quiet", "-m", "Create"], cwd=folder, check=True)
    same = make(folder, "review")
    assert same.returncode == 0, same.stdout + same.stderr
    program = folder / "stacks" / "__main__.py"
    own = 'import pulumi_kubernetes as k8s\n\nk8s.core.v1.Namespace("acme-team", metadata={"labels": {"owner": "team"}})\n'
    program.write_text(program.read_text() + own)
    changed = make(folder, "review", "FORMAT=markdown", "OUTPUT=review.md")
    assert changed.returncode == 2, changed.stdout + changed.stderr  # make's code for any failed command
    assert "acme-team" in (folder / "review.md").read_text()
    kept = json.loads((last_results.folder(folder) / "local.diff.json").read_text())  # for `trainfleet ui`
    assert "acme-team" in [change["name"] for change in kept["changes"]]


@pytest.fixture(scope="module")
def installed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the built wheel, its extras, pytest and ruff, at the locked versions."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, root]
    subprocess.run(build, check=True, capture_output=True)
    venv.create(folder / "env", with_pip=False)
    lines = (root / "requirements.lock").read_text().splitlines()
    pins = folder / "pins.txt"
    pins.write_text("\n".join(line.rstrip(" \\") for line in lines if line[:1].isalnum() and "==" in line))
    wheel = f"trainfleet[aws,gcp,azure,train,kuberay] @ {next(folder.glob('*.whl')).as_uri()}"
    uv = Path(sys.executable).with_name("uv")
    target = ("--python", folder / "env" / "bin" / "python")
    subprocess.run(
        [uv, "pip", "install", "--quiet", *target, "--constraints", pins, wheel, "pytest", "ruff"],
        check=True,
        capture_output=True,
    )
    return folder / "env" / "bin" / "python"


@pytest.mark.deep
@pytest.mark.launch
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_wheel_makes_a_repository_that_passes_its_checks(
    cloud: str, installed: Path, tmp_path: Path
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [installed, "-m", "trainfleet", "init", "training", *options(cloud)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    checked = make(tmp_path / "training", "check", python=installed)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "Everything passed." in checked.stdout
    folder = tmp_path / "training"
    assert list((folder / "wheels").glob("trainfleet-*.whl"))
    for words in (("add", "-A"), ("commit", "--quiet", "-m", "Create")):
        subprocess.run([*GIT, *words], cwd=folder, check=True)
    stack = next(folder.glob("stacks/Pulumi.[dl]*.yaml"))
    old, new = REDIS if cloud == "local" else OWNER
    stack.write_text(stack.read_text().replace(old, new))
    reviewed = make(folder, "review", "FORMAT=json", "OUTPUT=review.json", python=installed)
    report = json.loads((folder / "review.json").read_text())
    assert [each["exit_code"] for each in report["stacks"]] == [2], reviewed.stdout + reviewed.stderr
