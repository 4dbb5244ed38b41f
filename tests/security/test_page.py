"""docs/security.md agrees with the roles of the cluster layer, with its data, and with the tests that it names."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.infra.kubernetes.planned import plan
from tools.security import __main__ as command
from tools.security.page import PAGE, actors, current, written
from trainfleet.policies.catalogue import RULES

ROOT = Path(__file__).parents[2]
POLICIES = {rule.name for rule in RULES}
ACTORS = {
    "Developer",
    "Pull request of a fork",
    "CI, plan identity",
    "CI, apply identity",
    "Launcher",
    "Workload pod",
    "Cluster administrator",
    "Person on call",
}


@functools.cache
def functions(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_actor_has_a_row() -> None:
    assert {row["name"] for row in actors()} == ACTORS


@pytest.mark.parametrize("row", actors(), ids=lambda row: row["name"])
def test_what_shows_a_row_exists(row: dict[str, object]) -> None:
    shown = row["shown"]
    assert isinstance(shown, list)
    assert shown or row.get("not_enforced")
    for each in shown:
        path, _, name = str(each).partition("::")
        if path.startswith("policy "):
            assert path.removeprefix("policy ") in POLICIES, each
        else:
            assert (ROOT / path).is_file(), each
            assert not name or name in functions(ROOT / path), each


def test_the_generated_parts_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--check"]) == 0, capsys.readouterr().err


def test_a_stale_part_is_noticed() -> None:
    text = PAGE.read_text()
    assert written(text, {**current(), "kubernetes-roles": "\nother\n"}) != text
    with pytest.raises(ValueError, match="has the parts"):
        written(text.replace("<!-- generated: actors -->", ""), current())


def test_the_page_has_every_rule_that_the_layer_gives_to_people_and_pods() -> None:
    planned = plan()
    roles = {**planned.of("Role"), **planned.of("ClusterRole")}
    ours = [
        inputs
        for inputs in roles.values()
        if inputs["metadata"]["name"].startswith(("trainfleet-launcher", "trainfleet-training"))
    ]
    assert len(ours) == 4
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split(" | "))
        for line in current()["kubernetes-roles"].splitlines()
        if line.startswith(("| Role", "| ClusterRole"))
    ]
    assert len(rows) == sum(len(role["rules"]) for role in ours)
    for role in ours:
        for rule in role["rules"]:
            names = "".join(f"`{each}`" for each in rule.get("resourceNames") or [])
            resources = ", ".join(rule["resources"]) + (f" (only {names})" if names else "")
            expected = (resources, rule["apiGroups"][0] or "core", ", ".join(rule["verbs"]))
            name = f"`{role['metadata']['name']}`"
            assert any(name in row[0] and row[1:] == expected for row in rows), (name, expected)
