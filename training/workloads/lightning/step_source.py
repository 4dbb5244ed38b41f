"""Reads the source of a module's steps, so that what a later pass would reject is reported before training.

A step without readable source is checked when it runs.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, TypeGuard

from torch import nn

from trainfleet.errors import Problem
from trainfleet.training.workloads.lightning.step_log import wrong_call
from trainfleet.training.workloads.lightning.unsupported import (
    MEMBERS,
    STEPS,
    defines,
    no_index,
    no_member,
    of_lightning,
    step_name,
)


def unsupported_uses(module: nn.Module, known: frozenset[str]) -> list[Problem]:
    """What the steps, and the methods that they call, use and the step loop does not have.

    Args:
        module: as it was constructed.
        known: names that may be logged.
    """
    found: dict[Problem, None] = {}
    for name, tree in _functions(module):
        me, *others = [each.arg for each in tree.args.args]
        for node in ast.walk(tree):
            if _is_own(node, me) and node.attr in MEMBERS and of_lightning(type(module), node.attr):
                found[no_member(type(module), node.attr)] = None
            if isinstance(node, ast.Call) and _is_own(node.func, me):
                calls = [(each, _constants(node)) for each in _logged(node)]
                problems = [wrong_call(each, known, settings) for each, settings in calls]
                found.update((each, None) for each in problems if each is not None)
        is_step = any(name in steps for steps in STEPS.values())
        if is_step and len(others) > 1 and _computes_with(tree, others[1]):
            found[no_index()] = None
    return list(found)


def _functions(module: nn.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The steps, and the module's methods that they call, by name."""
    waiting = [name for split in STEPS if (name := step_name(module, split))] + ["forward"]
    known: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in known or not defines(module, name):
            continue
        known.add(name)
        tree = _parsed(getattr(type(module), name, None))
        if tree is not None and tree.args.args:
            yield name, tree
            waiting += [node.attr for node in ast.walk(tree) if _is_own(node, tree.args.args[0].arg)]


def _parsed(function: Any) -> ast.FunctionDef | None:
    """A function's definition; None if it cannot be read."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError):
        return None
    return body[0] if body and isinstance(body[0], ast.FunctionDef) else None


def _is_own(node: ast.AST, me: str) -> TypeGuard[ast.Attribute]:
    """Whether a node is `self.NAME`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == me


def _logged(call: ast.Call) -> list[str]:
    """The literal names of a call of `self.log` or `self.log_dict`."""
    assert isinstance(call.func, ast.Attribute)
    keywords = {each.arg: each.value for each in call.keywords}
    if call.func.attr == "log":
        names = [*call.args[:1], *filter(None, [keywords.get("name")])]
    elif call.func.attr == "log_dict":
        given = call.args[0] if call.args else keywords.get("dictionary")
        names = [each for each in given.keys if each is not None] if isinstance(given, ast.Dict) else []
    else:
        names = []
    return [each.value for each in names if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _constants(call: ast.Call) -> dict[str, Any]:
    """The literal keyword arguments of a call."""
    return {
        each.arg: each.value.value
        for each in call.keywords
        if each.arg and isinstance(each.value, ast.Constant)
    }


def _computes_with(tree: ast.FunctionDef, parameter: str) -> bool:
    """Whether a parameter is used, other than as an argument of a method."""
    passed = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        for each in (*node.args, *(keyword.value for keyword in node.keywords))
    }
    return any(
        isinstance(node, ast.Name)
        and node.id == parameter
        and isinstance(node.ctx, ast.Load)
        and id(node) not in passed
        for node in ast.walk(tree)
    )
