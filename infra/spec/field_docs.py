"""Use the docstrings of the spec's fields as their descriptions, for the JSON Schema and for messages.

Pydantic could do this itself, but it searches all loaded modules for the source of each class: 0.2 s of every
preview. So it happens only when a description is needed.
"""

from __future__ import annotations

import ast
from functools import cache
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path
from types import ModuleType

from trainfleet.infra.spec import identities, pod_template, ray, receivers, schema, storage, topology
from trainfleet.infra.spec.part import Part

MODULES = (identities, pod_template, ray, receivers, storage, topology, schema)
"""Parts before what contains them."""


@cache
def describe_fields(modules: tuple[ModuleType, ...] = MODULES) -> None:
    """Set the description of every field of the spec, or of the parts in other modules. Runs once per
    process.
    """
    parsed_modules = (
        (module, parsed)
        for module in modules
        for parsed in ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8")).body
    )
    for module, parsed in parsed_modules:
        model = getattr(module, parsed.name) if isinstance(parsed, ast.ClassDef) else None
        if isinstance(parsed, ast.ClassDef) and isinstance(model, type) and issubclass(model, Part):
            for name, text in _docstrings(parsed).items():
                model.model_fields[name].description = text
            # A model must be rebuilt after its parts, or the schema shows outdated parts.
            model.model_rebuild(force=True)


def _docstrings(parsed: ast.ClassDef) -> dict[str, str]:
    """The docstring of each field of a class."""
    return {
        field.target.id: " ".join(cleandoc(next_node.value.value).split())
        for field, next_node in pairwise(parsed.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(next_node, ast.Expr)
        and isinstance(next_node.value, ast.Constant)
        and isinstance(next_node.value.value, str)
    }
