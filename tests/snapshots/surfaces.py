"""What users and stored files depend on, reduced to names, types and limits: the surfaces that a refactoring
must not change.

Each function returns a JSON document without prose, so that rewriting a description changes nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROSE = ("description", "title", "examples")


def without_prose(node: Any, *, names: bool = False) -> Any:
    """A JSON Schema without descriptions; `names` says that the keys of this object are property names."""
    if isinstance(node, dict):
        kept = {key: each for key, each in node.items() if names or key not in PROSE}
        return {
            key: without_prose(each, names=key in ("properties", "$defs") and not names)
            for key, each in kept.items()
        }
    if isinstance(node, list):
        return [without_prose(each) for each in node]
    return node


def one_of(branch: dict[str, Any], resolved: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """What one of several forms of a value accepts."""
    facts = {key: value for key, value in branch.items() if key not in (*PROSE, "items")}
    return facts | ({"items": one_of(resolved(branch["items"]), resolved)} if "items" in branch else {})


def flat(schema: dict[str, Any]) -> dict[str, Any]:
    """Every property of a schema by its path, with what it accepts; definitions are resolved, so their names
    do not matter.
    """
    definitions = schema.get("$defs", {})
    found: dict[str, Any] = {}

    def resolved(node: dict[str, Any]) -> dict[str, Any]:
        reference = node.get("$ref")
        if reference is None:
            return node
        return {
            **definitions[reference.rpartition("/")[2]],
            **{key: each for key, each in node.items() if key != "$ref"},
        }

    def walk(node: dict[str, Any], path: str, depth: int) -> None:
        node = resolved(node)
        required = node.get("required", [])
        for name, each in node.get("properties", {}).items():
            here = f"{path}.{name}" if path else name
            child = resolved(each)
            facts = {
                key: value
                for key, value in child.items()
                if key not in (*PROSE, "properties", "$defs", "anyOf", "oneOf", "items")
            }
            facts.pop("required", None)
            if "oneOf" in child:
                facts["oneOf"] = [one_of(resolved(each), resolved) for each in child["oneOf"]]
            found[here] = {**facts, "required": name in required}
            if depth < 8:
                for branch in (child, *child.get("anyOf", []), *child.get("oneOf", [])):
                    walk(branch, here, depth + 1)
                    items = resolved(branch).get("items")
                    if isinstance(items, dict):
                        walk(items, f"{here}[]", depth + 1)

    walk(without_prose(schema), "", 0)
    return found


def command_line() -> dict[str, Any]:
    """Commands with their arguments and flags, and the exit codes of errors."""
    import typer

    from trainfleet.cli import app

    found: dict[str, Any] = {}

    def walk(command: Any, path: str) -> None:
        names = command.list_commands(None) if hasattr(command, "list_commands") else []
        found[path] = sorted(_parameter(each) for each in command.params)
        for name in names:
            below = (
                command.resolve_command(None, [name])[1]
                if path == "trainfleet"
                else command.get_command(None, name)
            )
            walk(below, f"{path} {name}")

    walk(typer.main.get_command(app), "trainfleet")
    return {"commands": found, "exit_codes": exit_codes()}


def _parameter(each: Any) -> str:
    flags = " ".join([*each.opts, *each.secondary_opts])
    kinds = [name for name in ("required", "multiple", "is_flag") if getattr(each, name, False)]
    return f"{flags}: {each.param_type_name} {' '.join(kinds)}".strip() + (
        f" = {each.default}" if each.default else ""
    )


def exit_codes() -> dict[str, int]:
    """Every error of the tree that ends a command, with its exit code."""
    from trainfleet.errors import TrainfleetError

    def below(kind: type[TrainfleetError]) -> list[type[TrainfleetError]]:
        return [kind, *(each for child in kind.__subclasses__() for each in below(child))]

    shared = [each for each in below(TrainfleetError) if each.__module__ == "trainfleet.errors"]
    return {each.__name__: each.exit_code for each in shared}


def spec() -> dict[str, Any]:
    """The keys of a platform spec."""
    from trainfleet.infra.spec.schema import PlatformSpec

    return flat(PlatformSpec.model_json_schema())


def contract() -> dict[str, Any]:
    """The keys of a stack's outputs."""
    from trainfleet.infra.outputs.contract import PlatformOutputs

    return flat(PlatformOutputs.model_json_schema())


def recipe() -> dict[str, Any]:
    """The keys of a recipe, and of each workload's section."""
    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.workloads.settings import names, settings_of

    sections = {name: flat(settings_of(name).model_json_schema()) for name in sorted(names())}
    return {"recipe": flat(Recipe.model_json_schema()), "workloads": sections}


def policies() -> list[str]:
    """The names of all policies."""
    from trainfleet.policies.catalogue import RULES

    return sorted(rule.name for rule in RULES)


def environment(root: Path) -> list[str]:
    """Every TRAINFLEET_ variable that the code names, those of the recipe's own keys aside."""
    import re

    folders = ("trainfleet", "infra", "stacks", "policies", "training", "tools")
    files = [
        path
        for folder in folders
        if (root / folder).is_dir()
        for path in (root / folder).rglob("*")
        if path.suffix in (".py", ".sh")
    ]
    return sorted(
        {
            name
            for path in files
            for name in re.findall(r"\bTRAINFLEET_[A-Z]+(?:_[A-Z]+)*\b", path.read_text(encoding="utf-8"))
        }
    )


def run_folder(run_dir: Path) -> dict[str, Any]:
    """A finished run's files and the keys of what it wrote, without values."""
    rows: dict[str, set[str]] = {}
    for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows.setdefault(row["kind"], set()).update(row)
    run = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    files = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}
    return {
        "files": sorted(each for each in files if not each.startswith("tensorboard/")),
        "rows": {kind: sorted(keys) for kind, keys in sorted(rows.items())},
        "run.json": sorted(run),
        "launch": sorted(run["launches"][-1]),
        "result": sorted(run["result"]),
    }
