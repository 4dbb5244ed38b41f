"""The docstrings of the spec's fields as descriptions: what an editor shows, and what a message says that a
field is.

Used by the schema and by whoever explains a mistake, and not by a preview: pydantic would look for the source
of each class
among all loaded modules, and with a cloud's SDK there are thousands (0.2 s of every preview). Easy to get
wrong: a model is
built again after its parts, or the schema shows the parts as they were.
"""

from __future__ import annotations

import ast
from functools import cache
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path

from trainfleet.infra.spec import schema


@cache
def describe_fields() -> None:
    """Give every field of the spec its docstring; once per process."""
    for written in ast.parse(Path(schema.__file__).read_text(encoding="utf-8")).body:
        model = getattr(schema, written.name) if isinstance(written, ast.ClassDef) else None
        if isinstance(written, ast.ClassDef) and isinstance(model, type) and issubclass(model, schema.Part):
            for name, text in _docstrings(written).items():
                model.model_fields[name].description = text
            model.model_rebuild(force=True)


def _docstrings(written: ast.ClassDef) -> dict[str, str]:
    """The text below each field of a class."""
    return {
        field.target.id: cleandoc(below.value.value)
        for field, below in pairwise(written.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
