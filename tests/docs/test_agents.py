"""What AGENTS.md promises to a program that follows messages: mistakes in a stack are fixed by their `fix` alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.pages import ROOT

MISTAKES = {
    "misspelt key": ("min_nodes: 1", "min_nodess: 1"),
    "misspelt choice": ("nat: single", "nat: singel"),
    "unknown machine": ("accelerator: L4,", "accelerator: L44,"),
    "misspelt section": ("system_pool:", "sytem_pool:"),
    "misspelt region": ("    region: us-east-2", "    region: us-esat-2"),
    "unknown policy": (
        "    tags: {team: ml}",
        "    tags: {team: ml}\n    exceptions: [{policy: no-host-paths, resource: it, reason: because of this, until: 2099-01-01}]",
    ),
}
MOST_ROUNDS = 3


def check(folder: Path) -> list[dict[str, Any]]:
    """The problems of the stack, as an agent reads them."""
    command = [sys.executable, "-m", "trainfleet", "spec", "check", "aws-dev", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2), done.stderr
    return list(json.loads(done.stdout)["stacks"][0]["problems"])


def follow(problem: dict[str, str], folder: Path) -> None:
    """Replace the wrong word at the place of a problem by the word of its fix. Knows nothing else."""
    place = re.match(r"(?P<file>[^: ]+):(?P<line>\d+)", problem["where"])
    wrong = re.search(r"`([^`]+)`", problem["what"])
    right = re.search(r"did you mean `([^`]+)`", problem["fix"])
    assert place, problem
    assert wrong, problem
    assert right, problem
    path = folder / place["file"]
    lines = path.read_text().splitlines(keepends=True)
    index = int(place["line"]) - 1
    assert wrong[1] in lines[index], f"{problem}: line {index + 1} is {lines[index]}"
    lines[index] = lines[index].replace(wrong[1], right[1], 1)
    path.write_text("".join(lines))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("names", [[name] for name in MISTAKES] + [list(MISTAKES)], ids=[*MISTAKES, "all"])
def test_following_the_messages_fixes_a_stack(names: list[str], tmp_path: Path) -> None:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
    stack = tmp_path / "stacks" / "Pulumi.aws-dev.yaml"
    text = (ROOT / "stacks" / "Pulumi.aws-dev.yaml").read_text()
    stack.write_text(text)
    assert check(tmp_path) == []
    for right, wrong in map(MISTAKES.__getitem__, names):
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    stack.write_text(text)
    problems = check(tmp_path)
    assert problems
    rounds = 0
    while problems and rounds < MOST_ROUNDS:
        for problem in problems:
            follow(problem, tmp_path)
        problems, rounds = check(tmp_path), rounds + 1
    assert problems == []


def test_every_page_of_llms_txt_exists() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text())
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).is_file()] == []
