"""Shell completion offers recipes, platforms and runs, quickly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainfleet import completion


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.aws-prod.yaml").touch()
    (tmp_path / "outputs.json").touch()
    (tmp_path / "mine.yaml").touch()
    for name in ("night-1", "night-2", "unfinished"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    for name in ("night-1", "night-2"):
        (tmp_path / "runs" / name / "run.json").touch()
    return tmp_path


def test_recipes_are_the_included_ones_and_the_users_files() -> None:
    assert {"lm-tiny", "lm-small"} <= set(completion.recipes("lm-"))
    assert completion.recipes("mi") == ["mine.yaml"]


def test_stacks_are_files_with_outputs_and_pulumi_stacks() -> None:
    assert completion.stacks("") == ["aws-prod", "outputs.json"]


def test_runs_are_folders_with_a_record() -> None:
    assert completion.run_names("night") == ["night-1", "night-2"]
    assert completion.run_folders("") == ["runs/night-1", "runs/night-2"]
    assert completion.run_names("un") == []


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("trainfleet launch mi", "mine.yaml"),
        ("trainfleet launch lm-tiny --stack out", "outputs.json"),
        ("trainfleet runs stop night-2", "night-2"),
        ("trainfleet report runs/night-1", "runs/night-1"),
    ],
)
def test_the_shell_gets_the_names_without_a_heavy_import(words: str, offered: str) -> None:
    code = "import sys; from trainfleet.cli import app; sys.argv = ['trainfleet']\ntry:\n app(prog_name='trainfleet')\n"
    code += "finally:\n print({'torch', 'ray', 'pulumi', 'kubernetes', 'sky'} & set(sys.modules))"
    env = {
        **os.environ,
        "_TRAINFLEET_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    lines = done.stdout.split("\n")
    assert offered in lines, done.stderr
    assert "set()" in lines
