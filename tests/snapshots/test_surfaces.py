"""The surfaces that users and stored files depend on are those of the last release.

A failure here means that a change renames or removes something that a stack file, a recipe, a script, a
launcher of another
version or a stored run relies on. When the change is intended, add an alias or a migration, note it in
CHANGELOG.md and run
`python -m tests.snapshots --update`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.snapshots import FILES, read, stored, surfaces

GONE = "was removed or renamed, which breaks its users"


def test_no_command_argument_flag_or_exit_code_is_gone() -> None:
    found, released = stored(surfaces.command_line()), read("command_line")
    assert found["exit_codes"] == released["exit_codes"]
    missing = {
        name: sorted(set(each) - set(found["commands"].get(name, [])))
        for name, each in released["commands"].items()
    }
    assert {name: each for name, each in missing.items() if each or name not in found["commands"]} == {}, GONE


@pytest.mark.parametrize("name", [name for name in FILES if name != "command_line"])
def test_a_surface_is_the_released_one(name: str) -> None:
    assert stored(FILES[name]()) == read(name), f"{name} {GONE}"


def test_environment_variables_keep_their_names(root: Path) -> None:
    missing = set(read("environment")) - set(surfaces.environment(root))
    assert not missing, f"{sorted(missing)} {GONE}"


@pytest.mark.parametrize(
    "change",
    [
        {"properties": {}},
        {"properties": {"name": {"type": "integer"}}},
        {"properties": {"name": {"type": "string", "default": "x"}}},
    ],
)
def test_a_schema_that_changes_is_noticed(change: dict[str, Any]) -> None:
    before = surfaces.flat({"properties": {"name": {"type": "string", "description": "A name."}}})
    assert surfaces.flat(change) != before


def test_a_description_is_not_part_of_a_schema() -> None:
    one, other = (
        {"properties": {"title": {"type": "string", "description": text}}} for text in ("Old.", "New.")
    )
    assert surfaces.flat(one) == surfaces.flat(other)
