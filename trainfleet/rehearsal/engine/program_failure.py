"""Says where and why a program failed.

`program.py` loads this file by path: it imports the standard library only.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

PROGRAM = str(Path(__file__).with_name("program.py"))
"""The file that runs the program; its frames are not shown."""


def explain(error: BaseException, root: Path) -> dict[str, str]:
    """Describe where and why a program failed: file and line of the user's code, resource, property."""
    frames = _frames(error.__traceback__)
    own = [frame for frame in frames if _is_own(frame[0], root)]
    frame, line = own[-1] if own else frames[-1]
    failure = {
        "kind": type(error).__name__,
        "message": str(error),
        "where": f"{_short(Path(frame.f_code.co_filename), root)}:{line}",
        "code": linecache.getline(frame.f_code.co_filename, line).strip(),
    }
    for inner, _ in frames:
        name = inner.f_locals.get("resource_name")
        if isinstance(name, str):
            failure["resource"] = name
            failure["type"] = type(inner.f_locals.get("__self__")).__name__
    match = re.search(
        r"(\w+)(?:\.\w+)?\(\) got an unexpected keyword argument '(\w+)'", str(error)
    ) or re.search(r"'(\w+)' object has no attribute '(\w+)'", str(error))
    if match:
        failure["property"] = match.group(2)
        failure.setdefault("type", match.group(1))
        failure["known"] = ",".join(_known(frames, frame, match.group(1)))
    if missing := re.search(
        r"Missing required property '(\w+)'|missing \d+ required keyword-only arguments?: '(\w+)'", str(error)
    ):
        failure["property"] = missing.group(1) or missing.group(2)
    if isinstance(error, AttributeError):
        failure |= _attribute(error)
    if "resource" not in failure and (resource := _resource_at(frame, line)):
        failure["resource"] = resource
    return failure


def _attribute(error: AttributeError) -> dict[str, str]:
    """What to say of an attribute that a module or a resource does not have."""
    owner: Any = error.obj
    if isinstance(owner, ModuleType):
        found = {"type": f"the module {owner.__name__}", "resource": "", "property": error.name or ""}
        names = dir(owner)
    elif isinstance(getattr(owner, "_name", None), str):
        found, names = {"resource": owner._name}, dir(type(owner))
    else:
        return {}
    return found | {"known": ",".join(name for name in names if not name.startswith("_"))}


def _frames(step: TracebackType | None) -> list[tuple[FrameType, int]]:
    frames = []
    while step is not None:
        frames.append((step.tb_frame, step.tb_lineno))
        step = step.tb_next
    return [frame for frame in frames if frame[0].f_code.co_filename != PROGRAM] or frames


def _is_own(frame: FrameType, root: Path) -> bool:
    file = frame.f_code.co_filename
    return not re.search(r"site-packages|dist-packages|/lib/python3|<frozen", file) and (
        file.startswith(str(root)) or Path(file).is_file()
    )


def _short(file: Path, root: Path) -> str:
    for base in (root, *root.parents[:2]):
        if file.is_relative_to(base):
            return str(file.relative_to(base))
    return str(file)


def _known(frames: list[tuple[FrameType, int]], frame: FrameType, name: str) -> list[str]:
    """Return the parameters of a class or function, for "did you mean" suggestions."""
    import inspect

    for inner, _ in reversed(frames):
        own = inner.f_locals.get("__self__")
        if own is not None and hasattr(own, "_internal_init"):
            return [
                key
                for key in inspect.signature(own._internal_init).parameters
                if key not in ("resource_name", "opts", "__props__")
            ]
    scopes = (
        frame.f_globals,
        *(vars(value) for value in frame.f_globals.values() if inspect.ismodule(value)),
    )
    for scope in scopes:
        if name in scope and callable(scope[name]):
            return list(inspect.signature(scope[name]).parameters)
    modules = [
        module
        for key, module in sys.modules.items()
        if key.startswith("pulumi_") and module is not None and name in vars(module)
    ]
    return (
        [key for key in inspect.signature(getattr(modules[0], name)).parameters if key != "__self__"]
        if modules
        else []
    )


def _resource_at(frame: FrameType, line: int) -> str:
    """Return the name of the resource whose constructor call encloses a line.

    The name is the first argument, evaluated only if it contains no calls.
    """
    try:
        tree = ast.parse(Path(frame.f_code.co_filename).read_text())
    except (OSError, SyntaxError):
        return ""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args and node.lineno <= line <= (node.end_lineno or 0)
    ]
    for call in sorted(calls, key=lambda node: (node.end_lineno or 0) - node.lineno):
        first = call.args[0]
        simple = not any(isinstance(part, (ast.Call, ast.Await, ast.NamedExpr)) for part in ast.walk(first))
        if simple and isinstance(first, (ast.JoinedStr, ast.Constant, ast.Name, ast.Attribute, ast.BinOp)):
            try:
                value = eval(
                    compile(ast.Expression(first), "<name>", "eval"), frame.f_globals, frame.f_locals
                )
            except Exception:  # noqa: BLE001 - the name cannot be determined
                continue
            if isinstance(value, str):
                return value
    return ""
