"""The JSON Schema of recipes: the sections of a recipe, and the `workload` section of each built-in workload.

The schema uses only keywords that mean the same in draft 7 and draft 2020-12, as editors differ in the drafts
that they support. Rules between keys are left to the recipe's own validation.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

DRAFT = "http://json-schema.org/draft-07/schema#"
REF_TEMPLATE = "#/definitions/{model}"


class _Untitled(GenerateJsonSchema):
    """Without titles made of the names of keys, which only repeat them."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the signature is pydantic's
        return False


def recipe_schema() -> dict[str, Any]:
    """The schema as a JSON-like document."""
    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.workloads.settings import OWN, settings_of

    recipe, definitions = _schema_of(Recipe)
    # The section that all workloads have in common; the workloads' own take its place.
    definitions.pop(recipe["properties"]["workload"]["$ref"].rpartition("/")[2])
    for name in OWN:
        settings = settings_of(name)
        section, more = _schema_of(settings)
        for key, definition in {**more, settings.__name__: section}.items():
            if definitions.setdefault(key, definition) != definition:
                raise ValueError(f"two definitions are called {key}")
    recipe["properties"]["workload"] = _workload({name: settings_of(name).__name__ for name in OWN})
    return {
        "$schema": DRAFT,
        "title": "Trainfleet recipe",
        "description": "A training run. docs/reference/recipe.md lists the keys.",
        **{key: value for key, value in recipe.items() if key not in ("title", "description")},
        "definitions": dict(sorted(definitions.items())),
    }


def schema_text() -> str:
    """The schema as it is written to a file."""
    return json.dumps(recipe_schema(), indent=2, ensure_ascii=False) + "\n"


def _workload(built_in: dict[str, str]) -> dict[str, Any]:
    """The section `workload`: of a built-in workload its keys, of any other only the name."""
    name = {
        "description": "A built-in workload, one of an installed package, or `module:Class` of your own.",
        "anyOf": [{"enum": list(built_in)}, {"type": "string"}],
    }
    return {
        "description": "What is trained. The other keys depend on `name`.",
        "type": "object",
        "properties": {"name": name},
        "required": ["name"],
        "allOf": [
            {
                "if": {"properties": {"name": {"const": each}}, "required": ["name"]},
                "then": {"$ref": REF_TEMPLATE.format(model=section)},
            }
            for each, section in built_in.items()
        ],
    }


def _schema_of(model: type[BaseModel]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of a model, and the definitions that it refers to."""
    schema = _tidied(model.model_json_schema(ref_template=REF_TEMPLATE, schema_generator=_Untitled))
    return schema, schema.pop("$defs", {})


def _tidied(node: Any) -> Any:
    """A schema without titles, the defaults of whole sections, and details of docstrings."""
    if isinstance(node, list):
        return [_tidied(each) for each in node]
    if not isinstance(node, dict):
        return node
    node = {
        key: value if key in ("default", "enum", "const", "examples") else _tidied(value)
        for key, value in node.items()
    }
    if "$ref" in node:
        node.pop("default", None)
    if node.get("type") == "object" and isinstance(node.get("title"), str):
        node.pop("title")
    if isinstance(node.get("description"), str):
        node["description"] = " ".join(node["description"].split("Attributes:")[0].split())
    if "prefixItems" in node:
        node["items"] = _same(node.pop("prefixItems"))
    return node


def _same(members: list[Any]) -> Any:
    """The schema of every member of a tuple. The drafts share no keyword for members that differ."""
    if any(each != members[0] for each in members):
        raise ValueError(f"a tuple of different members: {members}")
    return members[0]
