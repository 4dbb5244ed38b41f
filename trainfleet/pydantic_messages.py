"""Turns pydantic's errors into `Problem`s: what is wrong at a path, and what would be valid. Independent of
the model, so that specs, stack outputs and recipes share it.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from ipaddress import IPv4Network
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from trainfleet.errors import Problem
from trainfleet.suggestions import did_you_mean, nearest

Path = tuple[str | int, ...]
"""Where a value is: keys and list positions from the root of the document."""
MARKERS = ("[key]", "[one]", "[list]")
"""Steps of an error's location that are not in the document; the last two are tags of the spec's models."""


def path_text(path: Iterable[str | int]) -> str:
    """A path as text: `gpu_pools[1].accelerator`, `tags["a.b"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"[\w:/-]+", step):
            text += f".{step}" if text else step
        else:
            text += f'["{printable(step)}"]'
    return text


def explain(error: ErrorDetails, model: type[BaseModel]) -> Problem:
    """A pydantic error about `model` as a `Problem` whose `where` is the path."""
    path = plain_path(error)
    what, fix = _message(error, path, model)
    return Problem(path_text(path), what, fix)


def plain_path(error: ErrorDetails) -> Path:
    """The error's path without pydantic's markers of dictionary keys and of the members of a union."""
    return tuple(step for step in error["loc"] if step not in MARKERS)


def part_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    """The model at `path` below `model`; None if that is a plain value, a list or a free mapping."""
    annotation: Any = model
    for step in path:
        annotation = _below(annotation, step)
        if annotation is None:
            return None
    return model_in(annotation)


def field_at(model: type[BaseModel], path: Sequence[str | int]) -> FieldInfo | None:
    """The declared field at `path`, or the field whose list or mapping contains `path`."""
    for length in range(len(path), 0, -1):
        owner, step = part_at(model, path[: length - 1]), path[length - 1]
        if owner is not None and isinstance(step, str):
            return owner.model_fields.get(step)
    return None


def annotation_at(model: type[BaseModel], path: Sequence[str | int]) -> Any:
    """The declared type of the value at `path`; None if none is declared."""
    annotation: Any = model
    for step in path:
        annotation = _below(annotation, step)
    return annotation


def homes_of(key: str, model: type[BaseModel]) -> list[str]:
    """The paths below `model` whose part has a field of this name: where a misplaced key belongs."""
    found = []
    for name, field in model.model_fields.items():
        part = model_in(_member(field.annotation) or field.annotation)
        if part is not None:
            if key in part.model_fields:
                found.append(name)
            found += [f"{name}.{home}" for home in homes_of(key, part)]
    return found


def likely_field(key: str, part: type[BaseModel] | None, model: type[BaseModel]) -> str | None:
    """The field of `part` that an unknown key most likely means; None if the key rather is in the wrong
    place.
    """
    match = nearest(key, part.model_fields) if part else None
    if match is None or SequenceMatcher(None, key, match).ratio() >= 0.8:
        return match
    return None if homes_of(key, model) else match


def shown(value: Any) -> str:
    """A value in the user's notation, short enough for one line."""
    if value is None:
        return "nothing"
    try:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    except (ValueError, RecursionError):
        return "a value that cannot be shown"
    text = printable(" ".join(text.split()))
    return f"`{text[:57]}...`" if len(text) > 60 else f"`{text}`"


def printable(text: str) -> str:
    """The text with control characters and invalid Unicode as escapes, safe for any terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _below(annotation: Any, step: str | int) -> Any:
    if annotation is None:
        return None
    part = model_in(annotation)
    if part is not None:
        field = part.model_fields.get(step) if isinstance(step, str) else None
        return field.annotation if field else None
    return _member(annotation)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model among the members of a union (`Part | None`), if any."""
    for candidate in _choices(annotation):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _member(annotation: Any) -> Any:
    """The type of the members of a tuple, list or mapping."""
    for candidate in _choices(annotation):
        if get_origin(candidate) in {tuple, list}:
            return get_args(candidate)[0]
        if get_origin(candidate) is dict:
            return get_args(candidate)[1]
    return None


def _choices(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in {Union, types.UnionType} else (annotation,)


def _message(error: ErrorDetails, path: Path, model: type[BaseModel]) -> tuple[str, str]:
    kind = error["type"]
    if kind == "extra_forbidden":
        return _unknown_key(path or (str(error["loc"][-1]),), model)  # `[x]` is left out of the path
    if kind == "missing":
        field = field_at(model, path)
        return "is missing", _expected(field)
    for pattern, message in _TABLE:
        if re.fullmatch(pattern, kind):
            what, fix = message(error)
            return what, fix or _expected(field_at(model, path))
    return f"{shown(error['input'])}: {error['msg'][0].lower()}{error['msg'][1:]}", _expected(
        field_at(model, path)
    )


def _unknown_key(path: Path, model: type[BaseModel]) -> tuple[str, str]:
    key = str(path[-1])
    part = part_at(model, path[:-1])
    what = f"unknown key {shown(key)}"
    match = likely_field(key, part, model)
    if match is None and (homes := homes_of(key, model)):
        return what, f"it belongs under {' or '.join(f'`{home}`' for home in homes)}"
    return what, f"did you mean `{match}`?" if match else did_you_mean(
        key, list(part.model_fields) if part else []
    )


def _expected(field: FieldInfo | None) -> str:
    if field is None:
        return ""
    example = f"for example {shown(field.examples[0]).strip('`')}" if field.examples else ""
    described = " ".join((field.description or "").split()).rstrip(".")
    return "; ".join(part for part in (described, example) if part)


def _choice(error: ErrorDetails) -> tuple[str, str]:
    names = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", ""))) or re.findall(
        r"\d+", str(error.get("ctx", {}).get("expected", ""))
    )
    match = nearest(shown(error["input"]).strip("`"), names)
    offered = f"one of {', '.join(names)}"
    return (
        f"{shown(error['input'])} is not a choice here",
        f"did you mean `{match}`? {offered}" if match else offered,
    )


def _bound(phrase: str, key: str) -> Callable[[ErrorDetails], tuple[str, str]]:
    def message(error: ErrorDetails) -> tuple[str, str]:
        bound = error.get("ctx", {}).get(key)
        fix = f"{phrase} {bound:g}" if isinstance(bound, int | float) else f"{phrase} {bound}"
        return f"{shown(error['input'])} is out of range", fix

    return message


def _text(error: ErrorDetails) -> tuple[str, str]:
    value = error["input"]
    if isinstance(value, bool | int | float):
        return (
            f"must be text, not {shown(value)}",
            f'put it in quotes, as it was meant: "{shown(value).strip("`")}"',
        )
    return f"must be text, not {_kind(value)}", ""


def _range(error: ErrorDetails) -> tuple[str, str]:
    value = error["input"]
    try:
        if isinstance(value, str):
            return (
                f"{shown(value)} is an address inside a range",
                f"the range is {IPv4Network(value, strict=False)}",
            )
    except ValueError:
        pass
    return f"{shown(value)} is not an IPv4 range", "write it like 10.40.0.0/16"


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a group of keys"
    return "a list" if isinstance(value, list | tuple) else shown(value)


def _must_be(kind: str) -> Callable[[ErrorDetails], tuple[str, str]]:
    return lambda error: (f"must be {kind}, not {_kind(error['input'])}", "")


_TABLE: tuple[tuple[str, Callable[[ErrorDetails], tuple[str, str]]], ...] = (
    (r"literal_error|enum", _choice),
    (r"ip_v4_network", _range),
    # Not shown: the value may be a secret.
    (r"variable_name", lambda error: (error["msg"], "such as SLACK_WEBHOOK_URL")),
    (r"string_type", _text),
    (r"string_unicode", lambda error: (f"{shown(error['input'])} is not readable text", "")),
    (r"string_pattern_mismatch", lambda error: (f"{shown(error['input'])} is not written as it must be", "")),
    (
        r"string_too_short",
        lambda error: (
            f"{shown(error['input'])} is too short",
            f"at least {error.get('ctx', {}).get('min_length')} characters",
        ),
    ),
    (r"int_.*", _must_be("a whole number")),
    (r"float_.*|finite_number", _must_be("a number")),
    (r"bool_.*", _must_be("true or false")),
    (r"date.*", lambda error: (f"must be a date, not {_kind(error['input'])}", "write it like 2027-01-31")),
    (r"greater_than", _bound("more than", "gt")),
    (r"greater_than_equal", _bound("at least", "ge")),
    (r"less_than", _bound("less than", "lt")),
    (r"less_than_equal", _bound("at most", "le")),
    (r"model_type|model_attributes_type|dict_type|mapping_type", _must_be("a group of keys")),
    (r"tuple_type|list_type", _must_be("a list")),
    (r"too_short", lambda _: ("is empty", "at least one")),
)
