"""The page of the recipes shows every recipe with a command that has what it needs."""

from __future__ import annotations

import re
import shlex

import pytest

from tools.pages import ROOT
from tools.reference.recipes import commands, gpus, markdown
from trainfleet.training.recipe.load import known_recipes, load_recipe

RECIPES = known_recipes()


def test_every_recipe_has_a_section_and_a_row() -> None:
    text = markdown()
    assert sorted(re.findall(r"^## (.*)$", text, re.M)) == sorted(RECIPES)
    assert sorted(re.findall(r"^\| \[([\w-]+)\]\(#\1\)", text, re.M)) == sorted(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_the_commands_before_a_training_write_what_its_recipe_reads(name: str) -> None:
    *before, train = commands(name, RECIPES[name])
    assert train == f"trainfleet train {name}"
    model = load_recipe(name).workload.model_dump().get("model", {}).get("pretrained") or ""
    local = model if (ROOT / "examples" / f"tiny_{model.partition('/')[0]}.py").exists() else ""
    assert [shlex.split(each)[2] for each in before] == [local.partition("/")[0]] * bool(local)
    assert [each for each in before if not (ROOT / shlex.split(each)[1]).is_file()] == []


def test_a_recipe_for_gpus_says_how_many() -> None:
    assert gpus(load_recipe("lm-1b")) == load_recipe("lm-1b").scaling.workers
    assert gpus(load_recipe("lm-tiny")) == 0
    assert "| GPUs | 8, one per worker |" in markdown()
