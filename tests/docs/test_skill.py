"""The skill for coding agents: its commands exist, and following the messages of a rehearsal alone fixes a program."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.pages import ROOT

SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))
PROGRAM = ROOT / "tests" / "rehearsal" / "programs" / "small"
PLANTED = {
    "misspelt argument": ('cidr_block="10.0.0.0/16"', 'cidr_blok="10.0.0.0/16"'),
    "misspelt function": ("aws.eks.Cluster(", "aws.eks.Clustr("),
    "range that starts inside its network": ('cidr_block="10.0.0.0/16"', 'cidr_block="10.0.0.1/16"'),
}
MOST_ROUNDS = 3


def sections() -> dict[str, str]:
    """What docs/reference/cli.md says about each command."""
    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    parts = re.split(r"^#+ (trainfleet [\w ]+?)$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("skill", SKILLS, ids=lambda path: path.parent.name)
def test_a_skill_has_a_name_a_description_and_commands_that_exist(skill: Path) -> None:
    _, head, text = skill.read_text(encoding="utf-8").split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["name"] == skill.parent.name
    assert 100 < len(about["description"]) <= 1024
    commands = re.findall(r"`(trainfleet (?:spec check|rehearse|diff))([^`]*)`", text)
    assert {name for name, _ in commands} == {
        "trainfleet spec check",
        "trainfleet rehearse",
        "trainfleet diff",
    }
    known = sections()
    for name, rest in commands:
        for option in re.findall(r"--[\w-]+", rest):
            assert option == "--help" or f"`{option}`" in known[name], f"{name} {option}"


def test_the_skill_is_named_where_agents_look() -> None:
    for page in ("AGENTS.md", "llms.txt"):
        assert "skills/verify-infrastructure/SKILL.md" in (ROOT / page).read_text(encoding="utf-8")


def rehearse(folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of a rehearsal up to its preview, and its problems, as an agent reads them."""
    command = [sys.executable, "-m", "trainfleet", "rehearse", str(folder), "--until", "preview", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    steps = document.get("steps", [document])
    return done.returncode, [problem for step in steps for problem in step["problems"]]


def follow(problem: dict[str, str], folder: Path) -> bool:
    """Replace what a problem calls wrong by what its fix says, where that occurs once. Knows nothing else."""
    right = re.search(r"did you mean `([^`]+)`", problem["fix"])
    message = f"{problem['what']} {problem['where']}"
    wrong = re.findall(r"`([^`]+)`", message) + re.findall(r"[\w./:-]+", message)
    program = folder / "__main__.py"
    text = program.read_text(encoding="utf-8")
    for word in wrong:
        places = re.findall(rf"(?<![\w.]){re.escape(word)}(?![\w])", text) or re.findall(
            re.escape(word), text
        )
        if right and len(places) == 1 and word != right[1]:
            program.write_text(text.replace(word, right[1]), encoding="utf-8")
            return True
    return False


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PLANTED)
def test_following_the_messages_of_a_rehearsal_fixes_a_program(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(PROGRAM, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / "__main__.py").read_text(encoding="utf-8")
    right, wrong = PLANTED[name]
    assert text.count(right) == 1
    (folder / "__main__.py").write_text(text.replace(right, wrong), encoding="utf-8")
    code, problems = rehearse(folder)
    assert code != 0
    for _ in range(MOST_ROUNDS):
        if code == 0:
            break
        followed = [follow(problem, folder) for problem in problems]
        assert any(followed), problems
        code, problems = rehearse(folder)
    assert (code, problems) == (0, [])
    assert (folder / "__main__.py").read_text(encoding="utf-8") == text
