"""Strategies for hostile input: valid documents with parts replaced, and texts that break parsers."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import yaml
from hypothesis import strategies as st

from tests.fuzz.guard import OUTSIDE

LONG = 100_000
PATHS = (f"../../../../{OUTSIDE}", f"/{OUTSIDE}/x", f"file:///{OUTSIDE}", f"~/{OUTSIDE}", f"{OUTSIDE}\0.yaml")
TEXTS = (
    *PATHS,
    "",
    " ",
    "\0",
    "\ud800",
    "\u202e\u0000\x1b[2J",
    "😀" * 50,
    "A" * LONG,
    "${HOME}",
    "{{ 7*7 }}",
    "$(touch x)",
    "[bold red]x[/]",
    "[/nothing]",
    "<script>alert(1)</script>",
    "urn:pulumi:a::b::c::d",
    "::::",
    "1e999",
    "0x1F",
    "2026-99-99",
    "2026-11-26T99:99:99Z",
    "True",
    "null",
    "-",
    "04da6b54-80e4-46f7-96ec-b56ff0331ba9",
)
NUMBERS = (0, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 0.1, -0.0, 1e308)
NOT_FINITE = (math.nan, math.inf, -math.inf)


def deep(levels: int) -> Any:
    """A list in a list, `levels` times."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def values(*, finite: bool = False) -> st.SearchStrategy[Any]:
    """Values of any type, few of them of the one that is expected."""
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from(NUMBERS if finite else (*NUMBERS, *NOT_FINITE)),
        st.sampled_from(TEXTS),
        st.text(max_size=20),
        st.integers(),
    )
    nested = st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
        ),
        max_leaves=6,
    )
    return st.one_of(scalars, nested, st.just({}), st.just([]), st.builds(deep, st.integers(1, 60)))


def _places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, inner in items:
        found += _places(inner, (*path, key))
    return found


@st.composite
def mutated(draw: Callable[..., Any], documents: tuple[Any, ...], *, finite: bool = False) -> Any:
    """One of the documents with one to four parts replaced, removed, renamed, repeated or wrapped."""
    document = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 4))):
        places = _places(document)
        if not places:
            return draw(values(finite=finite))
        *above, last = draw(st.sampled_from(places))
        inside: Any = document
        for step in above:
            inside = inside[step]
        kind = draw(st.sampled_from(("replace", "replace", "remove", "rename", "wrap", "unwrap", "add")))
        if kind == "replace":
            inside[last] = draw(values(finite=finite))
        elif kind == "remove":
            del inside[last]
        elif kind == "wrap":
            inside[last] = draw(st.sampled_from(([inside[last]], {"value": inside[last]})))
        elif kind == "unwrap":
            value = inside[last]
            inside[last] = (
                next(iter(value.values() if isinstance(value, dict) else value), None)
                if isinstance(value, dict | list)
                else draw(values(finite=finite))
            )
        elif kind == "rename" and isinstance(inside, dict):
            inside[draw(st.one_of(st.sampled_from(TEXTS), st.text(max_size=8)))] = inside.pop(last)
        elif isinstance(inside, dict):
            inside[draw(st.text(max_size=8))] = draw(values(finite=finite))
        else:
            inside.append(copy.deepcopy(inside[last]))
    return document


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10)
)
HOSTILE_YAML = (
    LAUGHS,
    "a: &a\n  b: *a\n",
    "&a [*a]",
    "&a {? *a : 1}",
    "a: &a [*a, *a, *a]\nworkload: *a\nconfig: *a\nname: *a\n",
    "[" * 20_000,
    "{a: " * 5_000,
    "? " * 3_000,
    "- " * 3_000,
    "a: !!python/object/apply:os.system ['touch x']",
    "a: !!python/name:os.system",
    "!!binary notbase64!",
    "!!timestamp nothing",
    "!!int x",
    "!!float y",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!pairs [1]",
    "!<tag:yaml.org,2002:int> ''",
    "a: 2026-99-99",
    "a: 2026-11-26T25:61:61Z",
    "a: 1" + "0" * 5_000,
    "a: 0x" + "f" * 5_000,
    "a: " + "1:" * 3_000 + "1",
    "a: .nan\nb: .inf\nc: -.inf\n",
    "? [a, b]\n: c\n",
    "? {a: b}\n: c\n",
    "<<: 1\n",
    "<<: [1, 2]\n",
    "<<: {a: 1}\na: 2\n",
    "a: 1\n---\nb: 2\n",
    "%YAML 9.9\n---\na: 1\n",
    "\ufeffa: 1\n",
    "a: \x00\n",
    "a: \x07\n",
    '"\\ud800": "\\udfff"\n',
    "a: |\n" + "  x\n" * 1_000,
    "*unknown",
    "a: &x 1\nb: &x 2\nc: *x\n",
    "\t- a",
    "=: 1",
    "a: =",
    "~: ~",
    "1: 2\ntrue: false\n2026-01-01: x\n1.5: y\n",
)
HOSTILE_JSON = (
    "[" * 50_000,
    '{"a":' * 50_000,
    '{"a": 1' + "0" * 5_000 + "}",
    '{"a": 1e9999, "b": NaN, "c": -Infinity}',
    '{"a": 1, "a": 2}',
    '{"\\ud800": "\\udfff"}',
    '"\\u0000"',
    "null",
    "[]",
    "{}",
    "\ufeff{}",
    "1",
)


def flipped(text: str) -> st.SearchStrategy[bytes]:
    raw = text.encode()

    def flip(edits: list[tuple[int, int, bytes]]) -> bytes:
        found = raw
        for place, length, new in edits:
            at = place % (len(found) + 1)
            found = found[:at] + new + found[at + length :]
        return found

    edit = st.tuples(st.integers(0, len(raw)), st.integers(0, 12), st.binary(max_size=6))
    return st.lists(edit, min_size=1, max_size=4).map(flip)


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def as_yaml(document: Any) -> bytes:
    """A document as a file."""
    return _as_bytes(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def yaml_files(*documents: Any) -> st.SearchStrategy[bytes]:
    """Files that should be YAML."""
    return st.one_of(
        mutated(documents).map(as_yaml),
        st.sampled_from(documents).map(as_yaml).flatmap(lambda raw: flipped(raw.decode())),
        st.sampled_from(HOSTILE_YAML).map(_as_bytes),
        st.tuples(st.sampled_from(HOSTILE_YAML), st.sampled_from(documents)).map(
            lambda pair: as_yaml(pair[1]) + _as_bytes(pair[0])
        ),
        st.binary(max_size=200),
    )


def json_files(*documents: Any) -> st.SearchStrategy[bytes]:
    """Files that should be JSON."""
    texts = tuple(json.dumps(document) for document in documents)
    return st.one_of(
        mutated(documents).map(json.dumps).map(_as_bytes),
        st.sampled_from(texts).flatmap(flipped),
        st.sampled_from(HOSTILE_JSON).map(_as_bytes),
        st.binary(max_size=200),
    )
