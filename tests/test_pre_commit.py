"""The hooks of .pre-commit-config.yaml: local ones alone, and each runs a tool that a checkout has."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
HOOKS: list[dict[str, Any]] = [hook for repo in CONFIG["repos"] for hook in repo["hooks"]]
PROVIDED_BY = {"lint-imports": "import-linter"}


def test_no_hook_is_fetched_from_elsewhere() -> None:
    assert {repo["repo"] for repo in CONFIG["repos"]} == {"local"}
    assert {hook["language"] for hook in HOOKS} == {"system"}


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_each_hook_runs_a_tool_of_the_development_extra(hook: dict[str, Any]) -> None:
    program, *arguments = hook["entry"].split()
    folder, _, tool = program.rpartition("/")
    assert folder == ".venv/bin"
    if tool == "python":
        assert importlib.util.find_spec(arguments[1]) is not None
    else:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        names = [each.partition(">")[0] for each in extras["optional-dependencies"]["dev"]]
        assert PROVIDED_BY.get(tool, tool) in names
