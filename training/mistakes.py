"""Pydantic's errors about a recipe in plain words: where, what is wrong, and what would be right.

Used by `training.recipe`. Easy to get wrong: only string steps of a path are keys; numbers are places in a tuple.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from trainfleet.errors import Problem
from trainfleet.nearest import did_you_mean

KeyPath = tuple[str, ...]
"""Keys from the root of a recipe to a value."""


def dotted(keys: Iterable[str]) -> str:
    """A path as an override spells it."""
    return ".".join(keys)


def section_at(model: type[BaseModel], keys: KeyPath) -> type[BaseModel] | None:
    """The model whose fields stand below `keys`; None where that is a plain value or unknown."""
    found = model
    for key in keys:
        field = found.model_fields.get(key)
        inner: Any = field.annotation if field is not None else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return None
        found = inner
    return found


def explain(error: ErrorDetails, model: type[BaseModel]) -> Problem:
    """One of pydantic's errors as a `Problem` whose `where` is the path."""
    keys = tuple(step for step in error["loc"] if isinstance(step, str))
    where, kind, context = dotted(keys), error["type"], error.get("ctx", {})
    section = section_at(model, keys[:-1])
    if kind == "extra_forbidden":
        return Problem(where, "is not known", did_you_mean(keys[-1], section.model_fields) if section else "")
    if kind == "missing":
        return Problem(where, "is missing", _says(section, keys))
    if kind == "literal_error":
        members = [str(each) for each in get_args(section.model_fields[keys[-1]].annotation)] if section else []
        return Problem(where, f"{shown(error['input'])} is not one of {', '.join(members)}", did_you_mean(str(error["input"]), members))
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        inner = section_at(model, keys)
        return Problem(where, f"must be a group of keys, not {shown(error['input'])}", f"keys: {', '.join(inner.model_fields)}" if inner else "")
    if kind == "string_pattern_mismatch":
        return Problem(where, f"{shown(error['input'])} does not fit {context['pattern']}", _says(section, keys))
    message = error["msg"][0].lower() + error["msg"][1:]
    return Problem(where, f"{shown(error['input'])}: {message.removeprefix('input ')}", _says(section, keys))


def shown(value: Any) -> str:
    """A value in a message: quoted and short."""
    text = "nothing" if value is None else f"`{value}`"
    return text if len(text) <= 60 else f"{text[:56]}...`"


def _says(section: type[BaseModel] | None, keys: KeyPath) -> str:
    field = section.model_fields.get(keys[-1]) if section and keys else None
    return field.description or "" if field else ""
