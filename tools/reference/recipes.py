"""docs/reference/recipes.md: the included recipes, from their files and their leading comments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tools.reference.pages import header
from tools.reference.tables import code, table

if TYPE_CHECKING:
    from trainfleet.training.recipe.schema import Recipe

MODELINE = "# yaml-language-server:"
INTRODUCTION = """`trainfleet train NAME` runs a recipe here, and `trainfleet launch NAME --on ...` elsewhere.
Copy a recipe to change it, or set keys on the command line. [Recipe](recipe.md) explains every key;
[Fine-tuning](../fine-tuning.md) and [Add a workload](../add-a-workload.md) show how to use your own model and
data.
"""


def markdown() -> str:
    """The page."""
    from trainfleet.training.recipe.load import known_recipes, load_recipe

    files = known_recipes()
    recipes = {name: load_recipe(path) for name, path in files.items()}
    order = sorted(recipes, key=lambda name: (recipes[name].scaling.use_gpu, name))
    rows = [_overview(name, files[name], recipes[name]) for name in order]
    parts = [header("Recipes"), INTRODUCTION, table(("Recipe", "Purpose", "Strategy", ">GPUs"), rows)]
    for name in order:
        parts += _section(name, files[name], recipes[name])
    return "\n".join(parts)


def comment(file: Path) -> str:
    """What a recipe's file says about it: its leading comment, as one paragraph."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith(MODELINE)]
    return " ".join(line.removeprefix("#").strip() for line in _leading(lines))


def gpus(recipe: Recipe) -> int:
    """How many GPUs a recipe needs: one per worker, or none."""
    return recipe.scaling.workers if recipe.scaling.use_gpu else 0


def commands(name: str, file: Path) -> list[str]:
    """What to run in a checkout: first what writes the recipe's model and data, then the training."""
    return [*re.findall(r"`(python examples/[^`]+)`", comment(file)), f"trainfleet train {name}"]


def _leading(lines: list[str]) -> list[str]:
    end = next((index for index, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return lines[:end]


def _overview(name: str, file: Path, recipe: Recipe) -> tuple[str, ...]:
    purpose = re.split(r"(?<=[^A-Z\d])[.:](?=\s|$)", comment(file), maxsplit=1)[0]
    return f"[{name}](#{name})", purpose, code(recipe.strategy), str(gpus(recipe) or "")


def _section(name: str, file: Path, recipe: Recipe) -> list[str]:
    written = yaml.safe_load(file.read_text(encoding="utf-8"))["workload"]
    needed = f"{gpus(recipe)}, one per worker" if gpus(recipe) else "none"
    rows = [
        ("workload", code(recipe.workload.name)),
        ("model", _keys(written.get("model", {}))),
        ("data", _keys(written.get("data", {})) or "the default of the workload"),
        ("strategy, precision", f"{code(recipe.strategy)}, {code(recipe.precision)}"),
        ("workers", str(recipe.scaling.workers)),
        ("GPUs", needed),
        ("steps, global batch", f"{recipe.steps:,}, {recipe.batch.global_batch:,}"),
        ("file", f"[recipes/{file.name}](../../recipes/{file.name})"),
    ]
    run = "\n".join(commands(name, file))
    return [
        f"## {name}\n",
        re.sub(r"docs/([\w-]+\.md)", r"[\1](../\1)", comment(file)) + "\n",
        table(("", ""), rows),
        f"<!-- not run: {_reason(recipe)} -->\n```sh\n{run}\n```\n",
    ]


def _reason(recipe: Recipe) -> str:
    return "needs GPUs of your own" if recipe.scaling.use_gpu else "trains for a minute or more"


def _keys(section: dict[str, Any]) -> str:
    """A section as it is written in the recipe."""
    return ", ".join(code(f"{key}: {_value(value)}") for key, value in section.items())


def _value(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()
