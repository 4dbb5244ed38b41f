"""The distributions in clean environments: which Pythons, what is missing, how large a light install is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.release import build, environments
from trainfleet import __version__

EPOCH = 1_790_000_000


def interpreter(file: Path, python: str) -> Path:
    """A command that answers as this Python."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'#!/bin/sh\necho "({python.replace(".", ", ")})"\n')
    file.chmod(0o755)
    return file


def test_every_python_of_the_project_is_checked(root: Path) -> None:
    assert environments.supported(root) == ["3.11", "3.12", "3.13"]


def test_an_interpreter_is_found_that_runs_and_has_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shim of pyenv for another version is on PATH and does not run."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert environments.find("3.99") is None
    interpreter(tmp_path / "shims" / "python3.99", "3.98")
    kept = interpreter(tmp_path / "pyenv" / "versions" / "3.99.1" / "bin" / "python3.99", "3.99")
    assert environments.find("3.99") == kept
    assert environments.find("3.99") != interpreter(tmp_path / "bin" / "python3.98", "3.98")
    assert environments.find("3.99") == kept
    first = interpreter(tmp_path / "bin" / "python3.99", "3.99")
    assert environments.find("3.99") == first


def test_a_missing_python_is_refused_unless_it_is_accepted_by_name(tmp_path: Path) -> None:
    pythons = {"3.11": tmp_path, "3.12": None, "3.13": None}
    (problem,) = environments.missing_problems(pythons, ["3.12", "3.11"])
    assert problem.where == "Python 3.13"
    assert "WITHOUT=3.13" in problem.fix
    assert environments.missing_problems(pythons, ["3.12", "3.13"]) == []


def test_only_a_supported_python_can_be_left_out(root: Path) -> None:
    command = [sys.executable, "-m", "tools.release", "--draft", "--without", "3.10"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "invalid choice: '3.10'" in done.stderr


def test_pins_keep_their_markers_and_lose_their_hashes(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(
        "a==1 \\\n    --hash=sha256:00\n    # via b\nn==2 ; python_full_version < '3.12' \\\n    --hash=sha256:01\n"
    )
    pins = environments.constraints(lock, tmp_path / "pins.txt").read_text()
    assert pins == "a==1\nn==2 ; python_full_version < '3.12'\n"


@pytest.fixture(scope="module")
def distributions(root: Path, tmp_path_factory: pytest.TempPathFactory) -> build.Distributions:
    return build.build(root, tmp_path_factory.mktemp("built"), EPOCH)


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("python", "cloud"), [("3.11", "aws"), ("3.12", "gcp"), ("3.13", "azure")])
def test_the_distributions_work_in_a_light_install(
    root: Path, distributions: build.Distributions, python: str, cloud: str, tmp_path: Path
) -> None:
    """`make release`, which another test runs, tries each Python with each cloud."""
    path = environments.find(python)
    if path is None:
        pytest.skip(f"Python {python} is not installed here")
    measured, problems = environments.check(root, distributions, path, cloud, tmp_path)
    assert problems == []
    assert measured.python.startswith(f"{python}.")
    assert environments.MOST_BYTES / 3 < measured.bytes < measured.used <= environments.MOST_BYTES


@pytest.mark.deep
def test_what_fails_in_an_environment_is_one_problem_that_names_it(
    root: Path, distributions: build.Distributions, tmp_path: Path
) -> None:
    """A wheel whose command line cannot be imported."""
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{root}", source], check=True)
    (source / "trainfleet" / "console.py").write_text("raise RuntimeError('broken here')\n")
    broken = build.build(source, tmp_path / "broken", EPOCH)
    where = tmp_path / "environment"
    where.mkdir()
    _, problems = environments.check(root, broken, Path(sys.executable), "aws", where)
    (problem,) = problems
    assert problem.where.startswith("Python 3.")
    assert "broken here" in problem.what
    assert __version__ in distributions.wheel.name
