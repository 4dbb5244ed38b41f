"""The reference of recipe keys is generated from the schema and lists every key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainfleet.training.recipe.changes import flatten
from trainfleet.training.recipe.docs import markdown
from trainfleet.training.recipe.load import load_recipe

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["lm-small", "vision-small", "speech-small"])
def test_every_key_of_a_recipe_is_listed(name: str) -> None:
    text = markdown()
    keys = [
        key
        for key, _ in flatten(load_recipe(name).model_dump(mode="json"))
        if not key.startswith(("publish.gates.", "tune.space."))
    ]
    assert [key for key in keys if f"| `{key}` |" not in text and f"# {key}\n" not in text] == []
    assert len(keys) > 80


def test_values_below_a_user_defined_name_are_listed_with_a_placeholder() -> None:
    text = markdown()
    assert "| `publish.gates.min` |" not in text
    assert all(
        f"| `{key}` |" in text for key in ("publish.gates.NAME.min", "tune.space.NAME.choice", "tune.trials")
    )


def test_limits_and_defaults_are_those_of_the_schema() -> None:
    lines = markdown().splitlines()
    assert "| `optimizer.lr` | number, above 0 | `0.0003` | Peak learning rate. |" in lines
    assert any(line.startswith("| `name` | text | needed |") for line in lines)
    assert any(line.startswith("| `optimizer.betas` | list of 2: number | `[0.9, 0.95]` |") for line in lines)


def test_generating_the_reference_does_not_import_torch() -> None:
    code = "import sys, trainfleet.training.recipe.docs; trainfleet.training.recipe.docs.markdown(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
