"""Finds the environment variables that the sources read, without importing them."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PREFIX = "TRAINFLEET_"
SKIPPED = {"build", "dist", "node_modules", "runs", "docs"}
SHELL_FILES = {".sh", ".mk"}
SHELL_NAMES = {"Makefile", "Dockerfile", "run"}
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,}")
_OWN = re.compile(rf"{PREFIX}[A-Z0-9]+(_[A-Z0-9]+)*")
_SHELL = re.compile(rf"\$\{{?({PREFIX}[A-Z0-9_]+)")
_RELEVANT = re.compile(rf'environ|getenv|\benv\b|{PREFIX}|^[A-Z_]+ = "[A-Z]', re.MULTILINE)
"""What a module contains that reads a variable or names one; others are not parsed."""
_HOLDER = re.compile(r"(^|\.)(environ|env)$")
_READERS = ("get", "pop", "setdefault")


def variables(root: Path) -> dict[str, set[str]]:
    """The variables that sources below `root` read, each with the top-level folders of its readers.

    A variable counts as read by a lookup in `os.environ` or in a mapping called `env`, directly or by a
    constant. Outside of tests every literal `TRAINFLEET_...` counts too: some lookups are in a loop, some in
    a shell script.
    Names with `__` are keys of a recipe and are left out.
    """
    texts = {file: file.read_text(encoding="utf-8") for file in files(root, {".py"})}
    modules = {file: ast.parse(text) for file, text in texts.items() if _RELEVANT.search(text)}
    constants: dict[str, set[str]] = {}
    for tree in modules.values():
        for name, value in _constants(tree):
            constants.setdefault(name, set()).add(value)
    found: dict[str, set[str]] = {}
    for file, tree in modules.items():
        folder = file.relative_to(root).parts[0]
        names = set(_looked_up(tree, constants)) | set(_in_shell(tree))
        if folder != "tests":
            names |= set(_literals(tree))
        for name in names:
            found.setdefault(name, set()).add(folder)
    for file in files(root, SHELL_FILES, SHELL_NAMES):
        for name in _SHELL.findall(file.read_text(encoding="utf-8")):
            found.setdefault(name, set()).add(file.relative_to(root).parts[0])
    return {name: folders for name, folders in sorted(found.items()) if "__" not in name}


def files(root: Path, suffixes: Iterable[str], names: Iterable[str] = ()) -> Iterator[Path]:
    """Source files below `root` in a fixed order, without this package. Links to folders are not followed."""
    for folder, below, held in os.walk(root):
        if Path(folder) == Path(__file__).parent:
            continue
        below[:] = sorted(each for each in below if each not in SKIPPED and (each == ".ci" or each[0] != "."))
        for name in sorted(held):
            if Path(name).suffix in suffixes or name in names:
                yield Path(folder, name)


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names at the top of a module that hold the name of a variable."""
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            for target in node.targets:
                if isinstance(target, ast.Name) and _VARIABLE.fullmatch(node.value.value):
                    yield target.id, node.value.value


def _looked_up(tree: ast.Module, constants: dict[str, set[str]]) -> Iterator[str]:
    for node in ast.walk(tree):
        key = _key(node)
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and _VARIABLE.fullmatch(key.value):
            yield key.value
        elif isinstance(key, ast.Name):
            yield from constants.get(key.id, ())
        elif isinstance(key, ast.Attribute):
            yield from constants.get(key.attr, ())


def _key(node: ast.AST) -> ast.expr | None:
    """What a node looks up in an environment; None if it does nothing of the kind."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        if node.func.attr == "getenv" or (node.func.attr in _READERS and _is_environment(node.func.value)):
            return node.args[0]
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_environment(node.value):
        return node.slice
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return node.left if _is_environment(node.comparators[0]) else None
    return None


def _is_environment(node: ast.expr) -> bool:
    return bool(_HOLDER.search(ast.unparse(node)))


def _literals(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _OWN.fullmatch(node.value):
            yield node.value


def _in_shell(tree: ast.Module) -> Iterator[str]:
    """Variables in shell text that a module holds, such as the scripts that it writes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _SHELL.findall(node.value.replace("${{", "${"))
