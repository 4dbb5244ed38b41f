"""Find where the files of `infra/` name a property: keywords of resource and argument classes, and keys of
their
dicts. Maps with free keys (labels, tags, data) are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FREE = frozenset(
    {
        "tags",
        "labels",
        "annotations",
        "match_labels",
        "data",
        "string_data",
        "node_labels",
        "resource_labels",
        "node_selector",
        "selector",
        "parameters",
    }
    | {
        "requests",
        "limits",
        "capacity",
        "hard",
        "volume_attributes",
        "opts",
        "values",
        "body",
        "pod_selector",
        "tags_all",
        "notifications",
    }
)
"""Maps with free keys, and keywords that are not properties."""
_KEY = re.compile(r"[a-z]+(_[a-z0-9]+)*$")


@dataclass(frozen=True)
class Site:
    """A property that a file names, with the positions of its name and value."""

    file: str
    name: str
    line: int
    column: int
    value: tuple[int, int, int, int]
    """Position of the value: from line and column to line and column, as ast counts (columns in bytes)."""

    def misspelt(self, text: str) -> str:
        """The file with a letter too many in the name."""
        return _put(
            text, self.line, self.column + len(self.name), self.line, self.column + len(self.name), "q"
        )

    def tripped(self, text: str) -> str:
        """The file with an error in the place of the value: shows whether a program evaluates it."""
        return _put(text, *self.value, "(1 // 0)")


def _put(text: str, line: int, column: int, end_line: int, end_column: int, new: str) -> str:
    lines = text.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: line - 1])) + column
    end = sum(map(len, lines[: end_line - 1])) + end_column
    whole = text.encode()
    return (whole[:start] + new.encode() + whole[end:]).decode()


def sites(file: Path, root: Path) -> list[Site]:
    """Every property that a file names, in the order of the file."""
    found = {
        (site.line, site.column): site
        for site in _sites(ast.parse(file.read_text()), str(file.relative_to(root)))
    }
    return [found[place] for place in sorted(found)]


def _sites(tree: ast.AST, file: str) -> Iterator[Site]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_resource(node):
            for keyword in node.keywords:
                if keyword.arg and keyword.arg != "opts":
                    yield _site(file, keyword.arg, keyword, keyword.value)
                    if keyword.arg not in FREE:
                        yield from _keys(keyword.value, file)
        elif isinstance(node, ast.AnnAssign) and re.search(r"ArgsDict\b", ast.unparse(node.annotation)):
            if isinstance(node.value, ast.Dict | ast.List):
                yield from _keys(node.value, file)
        elif (
            isinstance(node, ast.FunctionDef)
            and node.returns is not None
            and re.search(r"Args(Dict)?\b", ast.unparse(node.returns))
        ):
            for returned in (
                inner for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value
            ):
                if isinstance(returned.value, ast.Dict | ast.List | ast.ListComp):
                    yield from _keys(returned.value, file)


def _is_resource(node: ast.Call) -> bool:
    """A resource is given options, and an argument class is called so."""
    name = ast.unparse(node.func).rsplit(".", 1)[-1]
    return name.endswith("Args") or (
        name[:1].isupper() and any(keyword.arg == "opts" for keyword in node.keywords)
    )


def _keys(value: ast.expr, file: str) -> Iterator[Site]:
    if isinstance(value, ast.Call):
        return  # classes are looked at by themselves; what another function makes of a dict is its own affair
    if isinstance(value, ast.Dict):
        for key, item in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and _KEY.match(key.value):
                yield Site(file, key.value, key.lineno, key.col_offset + 1, _place(item))
                if key.value not in FREE:
                    yield from _keys(item, file)
        return
    for child in ast.iter_child_nodes(value):
        if isinstance(child, ast.expr):
            yield from _keys(child, file)


def _site(file: str, name: str, keyword: ast.keyword, value: ast.expr) -> Site:
    return Site(file, name, keyword.lineno, keyword.col_offset, _place(value))


def _place(value: ast.expr) -> tuple[int, int, int, int]:
    return (
        value.lineno,
        value.col_offset,
        value.end_lineno or value.lineno,
        value.end_col_offset or value.col_offset,
    )
