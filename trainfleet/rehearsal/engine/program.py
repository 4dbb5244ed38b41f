"""Runs a Pulumi program for the language host, as its own process: configure the runtime, run `__main__.py`,
report failure.

Started as a file, with any Python that has `pulumi`; imports nothing else of this project, so that an
adopter's own environment will do. `changes` are made to single properties by a resource transform, as if
the program's author had edited it.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import json
import linecache
import logging
import os
import re
import resource
import runpy
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

SHOWN = 32
KEPT = ("pulumi", "pydantic")
"""Beginnings of the packages that one program leaves imported for the next: large, and without a state of
their own.
"""
GARBAGE_AFTER = 200_000
"""New objects until Python looks for cycles among them; it looks after 700 by itself."""


def serve() -> None:
    """Run programs one after another, each in a fork of this process, which keeps the provider SDKs and
    pydantic imported between them.

    Reads runs as lines of JSON on stdin and answers each with its exit code. The program's own modules are
    never kept, and each
    run brings its whole environment.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        run = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_in_fork(run))
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        if run["seen"]:
            _import_again(Path(run["seen"]))


def _in_fork(run: dict[str, Any]) -> int:
    os.chdir(run["folder"])
    os.environ.clear()
    os.environ.update(run["environment"])
    output = os.open(run["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    tempfile.tempdir = None  # found for another environment
    try:
        return main(run)
    finally:
        if run["seen"]:
            seen = Path(run["seen"])
            seen.write_text(
                "\n".join(
                    name
                    for name, module in list(sys.modules.items())
                    if _is_kept(name) and not _is_lazy(module)
                )
            )
            seen.with_suffix(".memory").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
        sys.stdout.flush()
        sys.stderr.flush()


def _is_kept(name: str) -> bool:
    return name.split(".", maxsplit=1)[0].startswith(KEPT) and not name.startswith("pulumi.dynamic")


def _is_lazy(module: Any) -> bool:
    """Return whether a module is there in name only: the SDKs load their modules at the first use."""
    return type(module).__name__ == "_LazyModule"


def _import_again(seen: Path) -> None:
    """Import what the last program imported of what is kept, so that the next finds it there.

    A package is loaded before its modules: one that is still lazy would load while its module does, and miss
    its classes.
    """
    import contextlib
    import importlib

    for name in seen.read_text().split() if seen.is_file() else ():
        if name not in sys.modules or _is_lazy(sys.modules[name]):
            with contextlib.suppress(
                Exception
            ):  # a module that cannot be imported alone is imported by the program
                getattr(
                    importlib.import_module(name), "outputs", None
                )  # any name that is not an introspection loads a lazy module


def main(run: dict[str, Any]) -> int:
    """Run the program described and return the exit code."""
    # A program keeps what it makes until its end, so looking for garbage finds next to none: with an SDK
    # loaded that was half of its time.
    gc.freeze()
    gc.set_threshold(GARBAGE_AFTER)
    signal.signal(signal.SIGINT, lambda *_: os._exit(SHOWN))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(SHOWN))
    import pulumi
    from pulumi import runtime

    runtime.set_all_config(run["config"], run["secret_keys"])
    runtime.configure(runtime.Settings(**run["settings"]))
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if run["quiet"]:  # debug messages are a call to the engine each, and nobody reads them in a rehearsal
        pulumi.log.debug = lambda *_, **__: None
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    program = Path(run["program"])
    sys.argv = [str(program)]
    sys.path[0] = str(program if program.is_dir() else program.parent)

    def program_main() -> None:
        if run["changes"]:
            from pulumi.runtime.stack import register_resource_transform

            register_resource_transform(lambda args: changed(args, run["changes"]))
        runpy.run_path(str(program), run_name="__main__")

    try:
        loop.run_until_complete(runtime.run_in_stack(program_main))
    except pulumi.RunError as error:
        pulumi.log.error(str(error))
        return 1
    except BaseException as error:  # noqa: BLE001 - a program may raise anything, and the user has to read it
        if isinstance(error, SystemExit) and error.code in (0, None):
            return 0
        failure = explain(error, Path(run["settings"]["root_directory"] or "."))
        if run.get("failure_file"):
            Path(run["failure_file"]).write_text(json.dumps(failure))
        pulumi.log.error(
            f"Program failed with an unhandled exception:\n{''.join(traceback.format_exception(error))}"
        )
        return SHOWN
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def changed(args: Any, changes: list[dict[str, Any]]) -> Any:
    """Return the transform's result: the resource's properties with the requested changes, or None without any."""
    import pulumi

    matching = [change for change in changes if change["type"] == args.type_ and change["name"] == args.name]
    if not matching:
        return None
    props = dict(args.props)
    for change in matching:
        _set(props, change["path"], change["value"])
    return pulumi.ResourceTransformResult(props, args.opts)


def _set(props: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a nested property; steps between may be outputs, which are changed when they are known."""
    import pulumi

    first, rest = path[0], path[1:]
    if not rest:
        props[first] = value
        return
    inner = props.get(first)
    if isinstance(inner, pulumi.Output):
        props[first] = inner.apply(lambda known: _with(known, rest, value))
    else:
        props[first] = _with(inner, rest, value)


def _with(known: Any, path: list[str], value: Any) -> dict[str, Any]:
    copy = dict(known or {})
    _set(copy, path, value)
    return copy


def explain(error: BaseException, root: Path) -> dict[str, str]:
    """Return in plain words where and why a program failed: the file and line of the user's code, the
    resource, the property.
    """
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
    owner = getattr(error, "obj", None)
    if isinstance(error, AttributeError) and isinstance(getattr(owner, "_name", None), str):
        failure["resource"] = owner._name  # type: ignore[union-attr]
        failure["known"] = ",".join(name for name in dir(type(owner)) if not name.startswith("_"))
    if "resource" not in failure and (resource := _resource_at(frame, line)):
        failure["resource"] = resource
    return failure


def _frames(step: TracebackType | None) -> list[tuple[FrameType, int]]:
    frames = []
    while step is not None:
        frames.append((step.tb_frame, step.tb_lineno))
        step = step.tb_next
    return [frame for frame in frames if frame[0].f_code.co_filename != __file__] or frames


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
    """Return the arguments that a class or function knows, to offer the nearest right one."""
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
    """Return the name of the resource whose constructor call encloses a line: its first argument, worked out
    without calls.
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
            except Exception:  # noqa: BLE001 - then the name is not to be had
                continue
            if isinstance(value, str):
                return value
    return ""


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve()
    else:
        sys.exit(main(json.loads(os.environ.pop("TRAINFLEET_RUN"))))
